# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Connections: who is let in, and what arrives."""

import logging
import os
import pickle
import queue
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from dovetail_cluster import wire


class Pickled:
    """Fails the test as it is unpickled."""

    def __reduce__(self):
        return (os._exit, (99,))


@pytest.fixture
def key():
    return wire.new_key()


@pytest.fixture
def listener(key):
    """A listener and the queue of its links."""
    links = queue.SimpleQueue()
    server = wire.Listener("127.0.0.1:0", key, links.put, limit_s=60.0)
    yield server, links
    server.close()


def connected(listener, key):
    server, links = listener
    near = wire.dial(server.address, key)
    return near, links.get(timeout=120)


def start(link):
    messages, ends = queue.SimpleQueue(), queue.SimpleQueue()
    link.start(messages.put, ends.put)
    return messages, ends


def test_messages_come_whole_and_in_order_both_ways(listener, key):
    near, far = connected(listener, key)
    (to_near, _), (to_far, _) = start(near), start(far)
    sent = [b"x" * 5_000_000, {"step": 1}, None.__class__, "last"]
    for message in sent:
        near.send(message)
        far.send(message)
    assert [to_far.get(timeout=120) for _ in sent] == sent
    assert [to_near.get(timeout=120) for _ in sent] == sent
    near.close()
    far.close()


def test_a_close_sends_what_is_queued_and_tells_the_other_side(listener, key):
    near, far = connected(listener, key)
    messages, ends = start(far)
    start(near)
    near.send("last words")
    near.close(flush_s=60.0)
    assert messages.get(timeout=120) == "last words"
    assert "closed" in ends.get(timeout=120)
    far.send("to nobody")
    far.close()


@pytest.mark.capability("a stranger is refused and logged")
def test_a_wrong_key_is_refused_on_both_sides_with_the_address(listener, key, caplog):
    server, links = listener
    with caplog.at_level(logging.WARNING, "dovetail_cluster"):
        with pytest.raises(wire.Refused, match=r"hung up|reset"):
            wire.dial(server.address, wire.new_key())
        near, far = connected(listener, key)  # the right one still comes in
    assert links.empty()
    assert any("refused 127.0.0.1:" in r.message and "key" in r.message for r in caplog.records)
    near.close()
    far.close()


def test_a_silent_caller_blocks_nobody(listener, key):
    with socket.create_connection(wire.split(listener[0].address)):
        near, far = connected(listener, key)
    near.close()
    far.close()


def test_a_silent_caller_is_refused_in_time(key, caplog):
    server = wire.Listener("127.0.0.1:0", key, queue.SimpleQueue().put, limit_s=0.5)
    with socket.create_connection(wire.split(server.address), timeout=120) as silent:
        assert silent.recv(1) == b""  # closed once the refusal is logged
    assert any("within 0.5 s" in r.message for r in caplog.records)
    server.close()


def test_a_pickle_of_a_stranger_is_never_read(listener, key):
    server, links = listener
    data = pickle.dumps(Pickled())
    with socket.create_connection(wire.split(server.address)) as stranger:
        stranger.sendall(wire._LENGTH.pack(len(data)) + data.ljust(56, b"."))  # as much as is read
        while stranger.recv(4096):
            pass  # the listener's random bytes, then the end
    near, far = connected(listener, key)
    assert links.empty()
    near.close()
    far.close()


def test_a_reflected_answer_is_wrong(key):
    """A stranger that sends back what it gets has the digest of the other role at best."""
    near, far = socket.socketpair()

    def reflect() -> None:
        far.sendall(far.recv(32))
        far.sendall(far.recv(32))

    thread = threading.Thread(target=reflect)
    thread.start()
    with pytest.raises(wire.Refused, match="another key"):
        wire.shake(near, key, daemon=True, limit_s=60.0)
    thread.join(120)
    near.close()
    far.close()


def test_a_listener_that_knows_no_key_is_refused(key):
    near, far = socket.socketpair()

    def answer() -> None:
        far.recv(32)
        far.sendall(bytes(32))
        far.recv(32)
        far.sendall(bytes(32))

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(wire.Refused, match="the other side has another key"):
        wire.shake(near, key, daemon=True, limit_s=60.0)
    thread.join(120)
    near.close()
    far.close()


def test_a_cut_link_drops_messages_both_ways_and_mends(listener, key, monkeypatch):
    near, far = connected(listener, key)
    read_all = threading.Event()

    def sleep(seconds):  # of the reader, once it has come to the end of a cut stream
        read_all.set()
        time.sleep(seconds)

    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    (to_near, _), (to_far, ends) = start(near), start(far)
    near.send("before")
    assert to_far.get(timeout=120) == "before"
    far.cut = True
    heard = far.heard
    near.send("lost")
    far.send("lost")
    while far.pending:
        time.sleep(0.01)
    near.send("lost too")
    near.close(flush_s=60.0)  # even the end of the stream does not come through
    assert read_all.wait(120)
    assert far.heard == heard
    assert ends.empty()
    far.cut = False
    ends.get(timeout=120)
    assert to_far.empty()
    assert to_near.empty()
    far.close()


def test_a_message_that_cannot_be_read_ends_the_link(listener, key):
    near, far = connected(listener, key)
    _, ends = start(far)
    wire.write_frame(near._sock, b"not a pickle")
    assert "cannot be read" in ends.get(timeout=120)
    near.close()
    far.close()


@pytest.mark.capability("the key comes from a private file or the environment")
def test_the_key_comes_from_the_environment_or_a_private_file(tmp_path, key):
    file = tmp_path / "key"
    file.write_text(key.hex() + "\n")
    file.chmod(0o600)
    assert wire.read_key({wire.KEY: key.hex()}) == key
    assert wire.read_key({wire.KEY_FILE: str(file)}) == key
    assert wire.read_key({}) is None
    assert wire.without_keys({wire.KEY: "a", wire.KEY_FILE: "b", "HOME": "c"}) == {"HOME": "c"}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o400])
def test_a_key_file_of_another_mode_is_refused_with_the_command(tmp_path, key, mode):
    file = tmp_path / "key"
    file.write_text(key.hex())
    file.chmod(mode)
    with pytest.raises(ValueError, match=rf"got mode {mode:04o} of .*; type chmod 600 {file}"):
        wire.read_key({wire.KEY_FILE: str(file)})


@pytest.mark.parametrize("text", ["", "abcd", "x" * 64])
def test_a_malformed_key_is_refused_without_being_shown(text):
    with pytest.raises(ValueError, match=r"must be 64 hexadecimal digits, got .*; write one"):
        wire.read_key({wire.KEY: text})


def test_a_daemon_needs_a_key(monkeypatch, key):
    monkeypatch.delenv(wire.KEY, raising=False)
    monkeypatch.delenv(wire.KEY_FILE, raising=False)
    with pytest.raises(ValueError, match=r"a daemon needs the key .* got neither; export"):
        wire.own_key()
    monkeypatch.setenv(wire.KEY, key.hex())
    assert wire.own_key() == key


def test_an_address_has_a_port():
    assert wire.split("10.0.0.1:99") == ("10.0.0.1", 99)
    assert wire.split("[::1]:99") == ("::1", 99)
    with pytest.raises(ValueError, match=r"must be HOST:PORT, got 'head'; write"):
        wire.split("head")
