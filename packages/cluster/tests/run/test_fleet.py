# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The driver's side of daemons that the test plays: places, joins, losses, replacements."""

import queue
import time

import pytest

from dovetail_cluster import wire
from dovetail_cluster.events import Dismiss, Joined, Lost, Noticed
from dovetail_cluster.run import messages
from dovetail_cluster.run.fleet import Fleet


class Played:
    """A place whose daemon is the test."""

    def __init__(self, name: str):
        self.name, self.code = name, None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9


class Backend:
    """Tells the test of each placement."""

    count, listen = 2, "127.0.0.1"

    def __init__(self):
        self.placements = queue.SimpleQueue()
        self.closed = False

    def place(self, line, environment, *, place: int) -> Played:
        played = Played(f"place {place}")
        self.placements.put((place, list(line), dict(environment), played))
        return played

    def close(self) -> None:
        self.closed = True


class Daemon:
    """A daemon as the fleet sees it."""

    def __init__(self, fleet: Fleet, key: bytes, place: int):
        self.link = wire.dial(fleet.address, key)
        self.received, self.ends = queue.SimpleQueue(), queue.SimpleQueue()
        self.link.start(self.received.put, self.ends.put)
        self.link.send(messages.Hello(place, "machine"))

    def wait(self, kind):
        while not isinstance(message := self.received.get(timeout=120), kind):
            pass
        return message


@pytest.fixture
def played():
    """A fleet, its backend, its key, and the first two placements."""
    backend = Backend()
    fleet = Fleet(backend, preload=("a", "b.c"), logs="first")
    first = [backend.placements.get(timeout=120) for _ in range(2)]
    yield fleet, backend, wire.read_key(first[0][2]), first
    fleet.close()
    assert backend.closed
    assert all(placement[3].code == -9 for placement in first)


def event(fleet, kind):
    """The next event of that kind, with its host."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        item = fleet.get(1.0)
        if item is not None and isinstance(item[1], kind):
            return item
    raise AssertionError(f"no {kind}")


def test_the_key_is_in_the_environment_and_never_in_the_line(played):
    fleet, _, key, first = played
    assert [placement[0] for placement in first] == [0, 1]
    for _, line, _, _ in first:
        assert key.hex() not in " ".join(line)
        assert line[line.index("--preload") + 1] == "a,b.c"
        assert line[line.index("--controller") + 1] == fleet.address


def test_a_ready_daemon_joins_and_a_closed_one_is_lost_and_placed_again(played):
    fleet, backend, key, _ = played
    daemon = Daemon(fleet, key, 1)
    welcome = daemon.wait(messages.Welcome)
    assert welcome.logs == "first"
    assert "" not in welcome.paths
    daemon.wait(messages.Beat)
    assert fleet.begin() == []
    daemon.link.send(messages.Ready())
    assert event(fleet, Joined) == (welcome.host, Joined(welcome.host, "place 1"))
    assert list(fleet.ready()) == [1]
    assert fleet.awaited() == {0}
    daemon.link.close()
    assert isinstance(event(fleet, Lost)[1], Lost)
    assert backend.placements.get(timeout=120)[0] == 1
    again = Daemon(fleet, key, 1)
    assert again.wait(messages.Welcome).host == welcome.host + 1
    again.link.close()


def test_a_daemon_that_ends_before_it_joins_is_placed_again_ever_more_slowly(played):
    fleet, backend, _, first = played
    begin = time.monotonic()
    first[0][3].code = 1
    _, _, _, second = backend.placements.get(timeout=120)
    second.code = 1
    assert backend.placements.get(timeout=120)[0] == 0
    assert time.monotonic() - begin >= 2.9  # the fleet looks each second, and waits 2 s
    assert fleet.broken == ""


def test_a_dismissed_host_stays_out_until_it_is_restored(played):
    fleet, backend, key, _ = played
    daemon = Daemon(fleet, key, 0)
    host = daemon.wait(messages.Welcome).host
    fleet.send(host, Dismiss(host, "sick"))
    assert daemon.wait(Dismiss).why == "sick"
    daemon.link.close()
    event(fleet, Lost)
    assert fleet.awaited() == {1}
    time.sleep(2.5)  # the fleet looks each second
    assert backend.placements.empty()
    fleet.restore(0)
    assert backend.placements.get(timeout=120)[0] == 0


def test_a_host_that_is_taken_away_is_tried_again_after_a_minute(played):
    fleet, _, key, _ = played
    daemon = Daemon(fleet, key, 0)
    host = daemon.wait(messages.Welcome).host
    daemon.link.send(messages.RunEvent(0, Noticed(host)))
    event(fleet, messages.RunEvent)
    fleet.send(host, Dismiss(host, "it will be taken away"))
    daemon.link.close()
    event(fleet, Lost)
    assert 0 in fleet.awaited()
    assert fleet._places[0].retry_at - time.monotonic() > 30.0


def test_a_second_daemon_takes_the_place_of_the_first(played):
    fleet, _, key, _ = played
    first = Daemon(fleet, key, 0)
    first.wait(messages.Welcome)
    second = Daemon(fleet, key, 0)
    second.wait(messages.Welcome)
    first.ends.get(timeout=120)
    assert "taken its place" in event(fleet, Lost)[1].why
    second.link.close()


def test_a_daemon_without_a_place_is_sent_away(played):
    fleet, _, key, _ = played
    daemon = Daemon(fleet, key, 2)
    daemon.ends.get(timeout=120)
    assert fleet.hosts() == []


def test_a_broken_daemon_is_remembered_and_not_placed_again(played):
    fleet, backend, key, first = played
    daemon = Daemon(fleet, key, 0)
    daemon.link.send(messages.Broken("no such module"))
    daemon.link.close(flush_s=60.0)
    event(fleet, Lost)
    assert fleet.broken == "place 0: no such module"
    first[0][3].code = 1
    time.sleep(2.5)
    assert backend.placements.empty()


def test_a_removed_host_is_killed_and_lost_at_once(played):
    fleet, _, key, first = played
    daemon = Daemon(fleet, key, 0)
    daemon.wait(messages.Welcome)
    fleet.remove(0)
    assert first[0][3].code == -9
    assert event(fleet, Lost)[1].why == "it was removed"
    with pytest.raises(RuntimeError, match=r"host 0 must be connected for that"):
        fleet.member(0)


def test_lines_are_printed_with_the_name(played, capfd):
    fleet, _, key, _ = played
    daemon = Daemon(fleet, key, 0)
    host = daemon.wait(messages.Welcome).host
    daemon.link.send(messages.Lines("rank 1", "a\nb"))
    daemon.link.send(messages.RunEvent(0, Noticed(host)))
    event(fleet, messages.RunEvent)
    fleet.flush()
    assert capfd.readouterr().err == "[rank 1] a\n[rank 1] b\n"
    daemon.link.close()


def test_begin_forgets_old_messages_and_has_the_notices(played):
    fleet, _, key, _ = played
    daemon = Daemon(fleet, key, 0)
    host = daemon.wait(messages.Welcome).host
    daemon.link.send(messages.Ready())
    event(fleet, Joined)
    daemon.link.send(messages.RunEvent(0, Noticed(host)))
    event(fleet, messages.RunEvent)
    fleet.post("old")
    members = fleet.begin()
    assert fleet.get(0.0) is None
    assert [(m.number, m.noticed) for m in members] == [(host, True)]
    daemon.link.close()
