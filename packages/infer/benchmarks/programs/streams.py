# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A client of streamed completions in a process of its own, for servers on this machine.

Each line of standard input is a load: {"port": p, "path": "/v1/completions", "bodies": [...],
"connections": n}. Every connection sends its next body when the answer to the last one has ended (a
closed loop). The line of standard output has the seconds of the load, and for each body its text,
the seconds from its sending to each of its events with text, and its count of tokens if the body
asks for `usage`. It does little while it measures: it keeps the bytes and their times, and reads
them afterwards. It addresses 127.0.0.1 alone, and imports nothing but the standard library.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any


class Exchange:
    """A request, and the pieces of its answer with their times."""

    def __init__(self, path: str, body: Any):
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        self.pieces: list[tuple[float, bytes]] = []
        self.sent = 0.0

    def result(self) -> dict[str, Any]:
        """Text, times of the events, and tokens."""
        answer, tokens = b"".join(data for _, data in self.pieces), None
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(answer.decode(errors="replace"))
        times, texts = [], []
        for at, event in self._events():
            if "error" in event:
                raise RuntimeError(json.dumps(event))
            if text := "".join(choice["text"] for choice in event["choices"]):
                times.append(at - self.sent)
                texts.append(text)
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
        return {"text": "".join(texts), "events_s": times, "tokens": tokens}

    def _events(self) -> Iterator[tuple[float, Any]]:
        """Objects of the stream, each with the time at which its last byte came.

        The frame of chunked transfer is left in: it stands between events, never inside of one.
        """
        pending = b""
        for at, data in self.pieces:
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield at, json.loads(line[6:])


class Connection(asyncio.Protocol):
    """One connection in a closed loop, until there are no more exchanges."""

    def __init__(self, exchanges: Iterator[Exchange]):
        self._exchanges = exchanges
        self._tail = b""
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._present.pieces.append((time.perf_counter(), data))
        self._tail = (self._tail + data)[-64:]
        refused = not self._present.pieces[0][1].startswith(b"HTTP/1.1 200 ")
        if refused or self._tail.endswith(b"\r\n0\r\n\r\n"):  # the last chunk
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_exception(error or RuntimeError("the server closed a connection"))

    def _next(self) -> None:
        self._tail = b""
        try:
            self._present = next(self._exchanges)
        except StopIteration:
            self.closed.set_result(None)
            self._transport.close()
            return
        self._present.sent = time.perf_counter()
        self._transport.write(self._present.request)


async def run(load: dict[str, Any]) -> dict[str, Any]:
    """Runs a load and returns its figures."""
    exchanges = [Exchange(load["path"], body) for body in load["bodies"]]
    left = iter(exchanges)
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    connections = [
        (await loop.create_connection(lambda: Connection(left), "127.0.0.1", load["port"]))[1]
        for _ in range(load["connections"])
    ]
    async with asyncio.timeout(600):  # a server that hangs
        await asyncio.gather(*(connection.closed for connection in connections))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "answers": [exchange.result() for exchange in exchanges]}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asyncio.run(run(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
