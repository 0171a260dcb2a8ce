# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files between the ranks of one generation: copies for the neighbour, blocks for a restore.

Each rank listens and answers in threads of its own, at any time. Rank 0 draws the key of the
generation.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import Any, NamedTuple

from dovetail_cluster.tier.agree import gather
from dovetail_cluster.tier.files import Header, Name, read_header, verify
from dovetail_cluster.tier.folder import Folder, Key
from dovetail_cluster.wire import Link, Listener, dial, new_key

_CHUNK_BYTES = 4 << 20


class Put(NamedTuple):
    """A part of a file.

    Args:
        name: The file.
        size_bytes: Size of the whole file.
        offset: First byte of the part.
        data: The part.
        complete: The newest complete step, as the sender knows it.
    """

    name: Name
    size_bytes: int
    offset: int
    data: bytes
    complete: Key | None


class Fetch(NamedTuple):
    """Asks for bytes of a file.

    Args:
        name: The file.
        offset: First byte.
        size_bytes: Number of bytes.
    """

    name: Name
    offset: int
    size_bytes: int


class Head(NamedTuple):
    """Asks for the header of a file."""

    name: Name


class Reply(NamedTuple):
    """The answer to any of them. `why` is the reason of a failure, None without one."""

    value: Any
    why: str | None


class Peers:
    """The other ranks. All ranks make one at the same time.

    Args:
        folder: The files of this host.
        local: The address of this host, without port.
        rank: This rank.
        hosts: Number of ranks.
    """

    def __init__(self, folder: Folder, *, local: str, rank: int, hosts: int) -> None:
        self._folder, self._rank = folder, rank
        self._links: dict[int, _Caller] = {}
        self._served: list[Link] = []
        self._listener: Listener | None = None
        self._addresses = [""]
        self._key = b""
        if hosts > 1:
            self._key = bytes.fromhex(gather(new_key().hex())[0])
            at = f"[{local}]:0" if ":" in local else f"{local}:0"
            self._listener = Listener(at, self._key, self._accept)
            host, _, port = self._listener.address.rpartition(":")
            self._addresses = gather(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    def copy(self, name: Name, to: int) -> None:
        """Sends a whole file of this host to another rank. That rank verifies and keeps it.

        Raises:
            OSError: The other rank has no room, or is gone.
        """
        path = self._folder.file(name)
        size_bytes, offset = path.stat().st_size, 0
        with open(path, "rb") as file:
            while data := file.read(_CHUNK_BYTES):
                self._ask(to, Put(name, size_bytes, offset, data, self._folder.complete))
                offset += len(data)

    def header(self, name: Name, holder: int) -> Header:
        """Returns the header of a file on the shelf of a rank.

        Raises:
            OSError: The rank is gone or cannot read the file.
        """
        if holder == self._rank:
            return read_header(self._folder.file(name), name)
        return self._ask(holder, Head(name))

    def read(self, name: Name, holder: int, offset: int, size_bytes: int) -> bytearray:
        """Returns bytes of a file on the shelf of a rank.

        Args:
            name: The file.
            holder: The rank.
            offset: First byte.
            size_bytes: Number of bytes.

        Raises:
            OSError: The rank is gone or cannot read the file.
        """
        data = bytearray()
        while len(data) < size_bytes:
            fetch = Fetch(name, offset + len(data), min(_CHUNK_BYTES, size_bytes - len(data)))
            data += self._read(fetch) if holder == self._rank else self._ask(holder, fetch)
        return data

    def close(self) -> None:
        """Ends all connections."""
        if self._listener is not None:
            self._listener.close()
        for link in [*self._served, *(caller.link for caller in self._links.values())]:
            link.close(flush_s=0.0)

    def _ask(self, rank: int, message: Put | Fetch | Head) -> Any:
        if rank not in self._links:
            self._links[rank] = _Caller(dial(self._addresses[rank], self._key))
        return self._links[rank].ask(message)

    # The other side.

    def _accept(self, link: Link) -> None:
        self._served.append(link)
        link.start(lambda message: link.send(self._answer(message)), lambda why: None)

    def _answer(self, message: Any) -> Reply:
        try:
            match message:
                case Put():
                    return Reply(self._keep(message), None)
                case Fetch():
                    return Reply(self._read(message), None)
                case Head(name=name):
                    return Reply(read_header(self._folder.file(name), name), None)
            return Reply(None, f"no such request: {type(message).__name__}")
        except (OSError, ValueError) as error:
            if isinstance(message, Put):
                self._folder.drop(message.name)
            return Reply(None, str(error))

    def _keep(self, put: Put) -> None:
        self._folder.complete = put.complete
        if put.offset == 0:
            path = self._folder.new(put.name, put.size_bytes)
            path.touch()
        else:
            path = self._folder.unfinished(put.name)
        with open(path, "r+b") as file:
            file.seek(put.offset)
            file.write(put.data)
        if put.offset + len(put.data) == put.size_bytes:
            verify(path, put.name)
            self._folder.put(put.name)

    def _read(self, fetch: Fetch) -> bytes:
        with open(self._folder.file(fetch.name), "rb") as file:
            data = os.pread(file.fileno(), fetch.size_bytes, fetch.offset)
        if len(data) != fetch.size_bytes:
            raise OSError(f"{fetch.name} must have {fetch.size_bytes} bytes at {fetch.offset}")
        return data


class _Caller:
    """A connection. Each request waits for its answer."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._end: Reply | None = None
        link.start(self._replies.put, self._hang_up)

    def _hang_up(self, why: str) -> None:
        self._end = Reply(None, why)
        self._replies.put(self._end)

    def ask(self, message: Put | Fetch | Head) -> Any:
        with self._turn:
            self.link.send(message)
            reply = self._end or self._replies.get()
        if reply.why is not None:
            raise OSError(f"{self.link.peer} cannot answer {type(message).__name__}: {reply.why}")
        return reply.value
