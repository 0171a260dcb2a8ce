# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Authenticated connections between the controller and the daemons.

Both sides prove knowledge of the key before anything is unpickled: each sends 32 random bytes and
returns the HMAC-SHA256 of both sides' bytes. The roles are part of the digest, so a reflected
answer is wrong. `multiprocessing.connection` has such a challenge too, but with MD5 up to Python
3.11, and one silent peer blocks its `accept`. Here each handshake has its own thread and
a limit. The traffic itself is neither encrypted nor signed: keep it on a trusted network.

After the handshake a message is a frame: its length in 8 bytes, then its pickle.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import pickle
import queue
import secrets
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KEY = "DOVETAIL_CLUSTER_KEY"
KEY_FILE = "DOVETAIL_CLUSTER_KEY_FILE"

BEAT_S = 1.0  # between two signs of life, both ways
SILENCE_S = 10.0  # without one, a daemon gives its controller up

_LIMIT_S = 10.0  # of a handshake
_HANDSHAKES = 64  # at the same time; more callers are refused
_CHUNK_BYTES = 1 << 20
_LENGTH = struct.Struct("!Q")
_ROLES = {False: b"dovetail-cluster controller", True: b"dovetail-cluster daemon"}

_log = logging.getLogger("dovetail_cluster")


class Refused(ConnectionError):
    """The other side does not know the key, or does not speak this protocol."""


def new_key() -> bytes:
    """Returns a new random key of 32 bytes."""
    return secrets.token_bytes(32)


def read_key(environment: Mapping[str, str]) -> bytes | None:
    """Reads the key from the environment or from the file named there.

    Args:
        environment: Variables, such as `os.environ`.

    Returns:
        The key, 32 bytes. None if the environment has neither variable.

    Raises:
        ValueError: The key is not 64 hexadecimal digits, or others may read its file.
    """
    if KEY in environment:
        return _parse(environment[KEY], where=f"the variable {KEY}")
    if KEY_FILE not in environment:
        return None
    path = Path(environment[KEY_FILE])
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != 0o600:
        raise ValueError(
            f"the file of {KEY_FILE} must be readable by its owner alone, got mode {mode:04o} of "
            f"{path}; type chmod 600 {path}"
        )
    return _parse(path.read_text(), where=str(path))


def _parse(text: str, *, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ValueError(
            f"a key must be 64 hexadecimal digits, got {len(text.strip())} characters in {where}; "
            f"write one with python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return key


def read_frame(sock: socket.socket) -> bytes:
    """Reads one frame. Raises EOFError at the end of the stream."""
    (length,) = _LENGTH.unpack(_read(sock, _LENGTH.size))
    return _read(sock, length)


def write_frame(sock: socket.socket, data: bytes) -> None:
    """Writes one frame, all of it."""
    sock.sendall(_LENGTH.pack(len(data)))
    sock.sendall(data)


def _read(sock: socket.socket, count: int, heard: Callable[[], None] | None = None) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(_CHUNK_BYTES, count - len(data)))
        if not chunk:
            raise EOFError("the connection was closed")
        data += chunk
        if heard is not None:
            heard()
    return bytes(data)


def shake(sock: socket.socket, key: bytes, *, daemon: bool, limit_s: float = _LIMIT_S) -> None:
    """Shows knowledge of the key to the other side, and asks it for the same.

    Args:
        sock: A connected socket.
        key: The key of the cluster.
        daemon: This side is the daemon and has dialled. The other one is the controller.
        limit_s: Seconds for all of it.

    Raises:
        Refused: The other side does not know the key, is too slow, or hangs up.
    """
    end, own = time.monotonic() + limit_s, secrets.token_bytes(32)

    def read() -> bytes:
        data = b""
        while len(data) < 32:
            sock.settimeout(max(0.001, end - time.monotonic()))
            chunk = sock.recv(32 - len(data))
            if not chunk:
                raise Refused("the other side hung up before it showed the key")
            data += chunk
        return data

    def digest(*, by_daemon: bool, nonces: bytes) -> bytes:
        return hmac.digest(key, _ROLES[by_daemon] + nonces, "sha256")

    try:
        if daemon:  # the controller shows the key last: it tells a stranger nothing
            sock.sendall(own)
            nonces = own + read()
            sock.sendall(digest(by_daemon=True, nonces=nonces))
            known = hmac.compare_digest(read(), digest(by_daemon=False, nonces=nonces))
        else:
            nonces = read() + own
            sock.sendall(own)
            known = hmac.compare_digest(read(), digest(by_daemon=True, nonces=nonces))
            if known:
                sock.sendall(digest(by_daemon=False, nonces=nonces))
    except TimeoutError:
        raise Refused(f"the other side did not show the key within {limit_s:g} s") from None
    except OSError as error:
        raise error if isinstance(error, Refused) else Refused(str(error)) from error
    if not known:
        raise Refused("the other side has another key")
    sock.settimeout(None)


class Link:
    """A connection with threads of its own to send and receive objects.

    Args:
        sock: A connected, authenticated socket.

    Attributes:
        peer: Address of the other side, "" for a socket pair.
        local: Address of this side, without its port.
        heard: `time.monotonic()` at the last byte.
        cut: True drops everything in both directions, as a broken network.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.cut = False
        self.heard = time.monotonic()
        self._sock = sock
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True, name="dovetail-write")
        inet = sock.family in (socket.AF_INET, socket.AF_INET6)
        self.peer = f"{sock.getpeername()[0]}:{sock.getpeername()[1]}" if inet else ""
        self.local = sock.getsockname()[0] if inet else ""

    @property
    def pending(self) -> int:
        """Number of messages in the queue."""
        return self._out.qsize()

    def start(self, receive: Callable[[Any], None], end: Callable[[str], None]) -> None:
        """Starts both threads.

        Args:
            receive: Called with each message, in the reader's thread.
            end: Called once, with the reason, when no more can come.
        """
        self._writer.start()
        threading.Thread(
            target=self._listen, args=(receive, end), daemon=True, name="dovetail-read"
        ).start()

    def send(self, message: Any) -> None:
        """Queues a message. Returns at once; messages to a closed connection are dropped."""
        self._out.put(message)

    def close(self, *, flush_s: float = 1.0) -> None:
        """Sends the queue, for at most `flush_s` seconds, and closes."""
        self._out.put(None)
        if self._writer.is_alive() and self._writer is not threading.current_thread():
            self._writer.join(flush_s)
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _note(self) -> None:
        if not self.cut:
            self.heard = time.monotonic()

    def _listen(self, receive: Callable[[Any], None], end: Callable[[str], None]) -> None:
        why = "the connection was closed"
        try:
            while True:
                (length,) = _LENGTH.unpack(_read(self._sock, _LENGTH.size, self._note))
                data = _read(self._sock, length, self._note)
                if not self.cut:
                    receive(pickle.loads(data))
        except EOFError:
            pass  # the other side closed, as `why` says
        except OSError as error:
            why = f"the connection broke: {error}"
        except Exception as error:
            _log.exception("a message of %s cannot be read", self.peer)
            why = f"a message cannot be read: {error}"
        while self.cut:  # a cut wire carries no end of stream either
            time.sleep(0.1)
            if self._sock.fileno() < 0:
                break
        end(why)
        self.close(flush_s=0.0)

    def _write(self) -> None:
        while (message := self._out.get()) is not None:
            if self.cut:
                continue
            try:
                write_frame(self._sock, pickle.dumps(message, protocol=5))
            except OSError:
                return  # the reader learns of it too, and says so


def dial(address: str, key: bytes, *, limit_s: float = _LIMIT_S) -> Link:
    """Connects to a controller.

    Args:
        address: "HOST:PORT" of the controller.
        key: The key of the cluster.
        limit_s: Seconds for the connection, and again for the handshake.

    Raises:
        Refused: The controller does not know the key.
        OSError: Nothing answers at the address.
    """
    host, port = split(address)
    sock = socket.create_connection((host, port), timeout=limit_s)
    try:
        shake(sock, key, daemon=True, limit_s=limit_s)
    except BaseException:
        sock.close()
        raise
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Link(sock)


def split(address: str) -> tuple[str, int]:
    """Splits "HOST:PORT".

    Raises:
        ValueError: The text has no port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"an address must be HOST:PORT, got {address!r}; write 10.0.0.1:9911")
    return host.strip("[]"), int(port)


class Listener:
    """Accepts connections and authenticates them, each in a thread of its own.

    Args:
        address: "HOST:PORT", port 0 for any.
        key: The key of the cluster.
        accept: Called with each authenticated connection, before its threads run.
        limit_s: Seconds for one handshake.
    """

    def __init__(
        self,
        address: str,
        key: bytes,
        accept: Callable[[Link], None],
        *,
        limit_s: float = _LIMIT_S,
    ) -> None:
        host, port = split(address)
        self._host, self._key, self._accept, self._limit_s = host, key, accept, limit_s
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family, backlog=_HANDSHAKES)
        self._free = threading.BoundedSemaphore(_HANDSHAKES)
        threading.Thread(target=self._serve, daemon=True, name="dovetail-accept").start()

    @property
    def address(self) -> str:
        """The address for daemons, "HOST:PORT"."""
        return f"{self._host}:{self._sock.getsockname()[1]}"

    def close(self) -> None:
        """Accepts no more connections. Open ones stay."""
        # It wakes the thread in accept. A platform that refuses it does so by the close.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, address = self._sock.accept()
            except OSError:
                if self._sock.fileno() < 0:
                    return
                time.sleep(0.1)  # such as too many open files
                continue
            if not self._free.acquire(blocking=False):
                _log.warning("refused %s: too many handshakes at once", address[0])
                sock.close()
                continue
            threading.Thread(
                target=self._shake, args=(sock, address), daemon=True, name="dovetail-shake"
            ).start()

    def _shake(self, sock: socket.socket, address: Any) -> None:
        try:
            shake(sock, self._key, daemon=False, limit_s=self._limit_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(sock)
        except OSError as error:
            _log.warning("refused %s:%s: %s", address[0], address[1], error)
            sock.close()
            return
        finally:
            self._free.release()
        self._accept(link)


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the key."""
    return {name: value for name, value in environment.items() if name not in (KEY, KEY_FILE)}


def own_key() -> bytes:
    """The key in this process's environment.

    Raises:
        ValueError: There is none.
    """
    key = read_key(os.environ)
    if key is None:
        raise ValueError(
            f"a daemon needs the key of its cluster in {KEY} or in a file named by {KEY_FILE}, got "
            f"neither; export the one that the controller has"
        )
    return key
