# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A host that follows: its daemons, and its waits for host 0. `test_env` has both sides."""

import pickle
import queue
import socket
import threading

import pytest

from dovetail_cluster import wire
from dovetail_cluster.backends.follow import Begin, End, Ended, Follower, Follows, Outcome
from dovetail_cluster.errors import HostsError

KEY = bytes(range(32))


@pytest.fixture
def lead():
    """Host 0: the address, and what comes from each connection as (link, message)."""
    inbox = queue.SimpleQueue()

    def meet(link):
        link.start(lambda message: inbox.put((link, message)), lambda why: inbox.put((link, None)))

    listener = wire.Listener("127.0.0.1:0", KEY, meet)
    yield listener.address, inbox
    listener.close()


def test_a_daemon_is_replaced_and_each_end_is_told_with_its_number(lead):
    address, inbox = lead
    follower = Follower(address, KEY, host=3, wait_s=120.0)
    # The thread that follows starts with the first call, which has to be waited for in another.
    value = queue.SimpleQueue()
    waiting = threading.Thread(target=lambda: value.put(follower.outcome(1)))
    waiting.start()
    link, message = inbox.get(timeout=120)
    assert message == Follows(3, 1)
    link.send(Begin(1, ("-c", "import time; time.sleep(600)"), {}))
    link.send(End())
    assert inbox.get(timeout=120) == (link, Ended(1, -9))
    link.send(Begin(2, ("-c", "import os, sys; sys.exit(int(os.environ['CODE']))"), {"CODE": "6"}))
    assert inbox.get(timeout=120) == (link, Ended(2, 6))
    link.send(Outcome(1, pickle.dumps("value"), False))
    assert value.get(timeout=120) == "value"
    waiting.join()
    link.send(Outcome(2, pickle.dumps(KeyError("k")), True))
    with pytest.raises(KeyError, match="k"):
        follower.outcome(2)
    follower.close()
    assert inbox.get(timeout=120) == (link, None)


def test_after_a_lost_connection_it_asks_for_the_next_outcome(lead):
    address, inbox = lead
    follower = Follower(address, KEY, host=1, wait_s=120.0)
    value = queue.SimpleQueue()
    waiting = threading.Thread(
        target=lambda: [value.put(follower.outcome(call)) for call in (1, 2)]
    )
    waiting.start()
    link, message = inbox.get(timeout=120)
    assert message == Follows(1, 1)
    link.send(Outcome(1, pickle.dumps("one"), False))
    assert value.get(timeout=120) == "one"
    link.close()
    while message is not None:
        _, message = inbox.get(timeout=120)
    link, message = inbox.get(timeout=120)
    assert message == Follows(1, 2)
    # A new host 0 makes its first call again: this host has that outcome already.
    link.send(Outcome(1, pickle.dumps("one again"), False))
    link.send(Outcome(2, pickle.dumps("two"), False))
    assert value.get(timeout=120) == "two"
    waiting.join()
    assert follower.outcome(1) == "one"
    follower.close()


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_without_host_0_it_gives_up_and_says_what_to_compare(lead, key):
    address = lead[0]
    if key is None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
    follower = Follower(address, key or KEY, host=1, wait_s=0.01)
    with pytest.raises(HostsError, match=r"host 0 must answer at 127.0.0.1:\d+ .*, got .*compare"):
        follower.outcome(1)
    follower.close()
