# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to a server: whole, slow, contradictory and cut ones."""

import asyncio
import json
import random
import time
from collections import Counter

from fuzzed.bodies import body_of, fault_of, mutated, text_of, valid_body

IDLE_S = 4.0  # less than uvicorn waits for the rest of a second request


class Connections:
    """Clients of a server on a port of this machine.

    Args:
        port: The port.
        statuses: Counts answers by status; 0 for connections that are closed without one.
        seed: Of all requests.
    """

    def __init__(self, port: int, statuses: Counter[int], seed: int) -> None:
        self._port, self._statuses, self._seed = port, statuses, seed
        self._expected = ""

    async def warm(self) -> None:
        """Asks for the text that all valid requests must have."""
        data = head(len(valid_body()), b"Connection: close\r\n") + valid_body()
        self._expected = text_of((await self._send(data)).partition(b"\r\n\r\n")[2])

    async def left(self) -> dict[str, int]:
        """Returns the numbers of requests and pages in use, when no request runs any more."""
        data = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        names = {
            "running": b"dovetail_infer_running_requests",
            "waiting": b"dovetail_infer_waiting_requests",
            "pages": b'dovetail_infer_pages{use="used",window="all"}',
            "failed steps": b"dovetail_infer_failed_steps_total",
        }
        end = time.monotonic() + 60  # aborts take effect between two steps
        while True:
            lines = dict(x.rsplit(b" ", 1) for x in (await self._send(data)).splitlines() if x)
            values = {name: int(float(lines[key])) for name, key in names.items()}
            if not any(values.values()) or time.monotonic() > end:
                return values
            await asyncio.sleep(0.1)

    async def ask(self, number: int) -> str | None:
        """Sends requests over one connection. Returns the broken claim, or None."""
        rng = random.Random(f"{self._seed} connection {number}")
        kinds = [self._valid, self._body, self._lengths, self._bytes, self._cut, self._paths]
        return await rng.choice(kinds)(rng)

    async def _valid(self, rng: random.Random) -> str | None:
        """One to three valid requests over one connection, all at once or slowly."""
        count, began = rng.randint(1, 3), time.monotonic()
        last = head(len(valid_body()), b"Connection: close\r\n") + valid_body()
        data = (head(len(valid_body())) + valid_body()) * (count - 1) + last
        answer = await self._send(data, pieces=rng.choice([1, 1, 4]), pause_s=rng.random() / 50)
        texts = [text_of(part.partition(b"\r\n\r\n")[2]) for part in answers(answer)]
        # A server may close a connection on which nothing comes for seconds.
        if texts != [self._expected] * count and time.monotonic() - began < IDLE_S:
            return f"{count} valid requests must have {count} right answers, got {answer[:500]!r}"
        return None

    async def _body(self, rng: random.Random) -> str | None:
        route, raw = body_of(rng)
        data = head(len(raw), b"Connection: close\r\n", route) + raw
        answer = await self._send(data)
        start, _, rest = answer.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in start.lower():
            rest = unchunked(rest)
        fault = fault_of(raw, status_of(answer), rest)
        return None if fault is None else f"{fault}: {route} {raw[:500]!r} -> {answer[:500]!r}"

    async def _lengths(self, rng: random.Random) -> str | None:
        """Lengths that are wrong or contradict each other; never a valid answer."""
        raw = valid_body()
        size = len(raw)
        lines = [
            b"Content-Length: %d\r\nContent-Length: %d\r\n" % (size, size + 5),
            b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % size,
            b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n" % size,
            b"Transfer-Encoding: gzip, identity\r\n",
            b"Content-Length: -1\r\n",
            b"Content-Length: +%d\r\n" % size,
            b"Content-Length: 0x%x\r\n" % size,
            b"Content-Length: %d\r\n" % 10**30,
            b"Content-Length: %d, %d\r\n" % (size, size),
            b"Transfer-Encoding: chunked\r\n",  # and no chunks follow
        ]
        data = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + rng.choice(lines) + b"\r\n" + raw
        return self._no_success(data, await self._send(data, whole=False))

    async def _bytes(self, rng: random.Random) -> str | None:
        """A request with changed bytes, in the head too."""
        extra = rng.choice([b"", b"Expect: 100-continue\r\n", b"X: " + b"y" * 70_000 + b"\r\n"])
        data = mutated(rng, head(len(valid_body()), extra) + valid_body())
        answer = await self._send(data, whole=False)
        return f"{data[:500]!r} -> {answer[:500]!r}" if status_of(answer) >= 500 else None

    async def _paths(self, rng: random.Random) -> str | None:
        """Methods, paths, queries and hosts of all kinds, without a body."""
        method = rng.choice([b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"BREW"])
        paths = [b"/", b"/health", b"/v1/models/a%00b", b"/v1/models/%ff", b"/v1/completions/"]
        paths += [
            b"//evil",
            b"/%2e%2e/etc",
            b"/health?\xff",
            b"*",
            b"http://[/",
            b"/" + b"a" * 9000,
        ]
        host = rng.choice([b"a", b"[", b"a:99999999", b"\xff", b""])
        line = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method, rng.choice(paths), host)
        data = line + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        answer = await self._send(data)
        return f"{data!r} -> {answer[:500]!r}" if status_of(answer) >= 500 else None

    async def _cut(self, rng: random.Random) -> str | None:
        """A client that leaves at a random moment."""
        body = {"model": "tiny", "prompt": "a", "max_tokens": 50, "stream": True}
        raw = json.dumps(body).encode()
        data = head(len(raw)) + raw
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(data[: rng.choice([rng.randrange(len(data)), len(data)])])
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() / 20)
        (writer.transport.abort if rng.random() < 0.5 else writer.close)()
        return None

    def _no_success(self, data: bytes, answer: bytes) -> str | None:
        status = status_of(answer)
        return None if status < 200 or 400 <= status < 500 else f"{data!r} -> {answer[:500]!r}"

    async def _send(
        self, data: bytes, *, whole: bool = True, pieces: int = 1, pause_s: float = 0.0
    ) -> bytes:
        """Returns all that the server sends until it closes the connection.

        What may not be a whole request ends the client's direction, so that nobody waits for more.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            step = -(-len(data) // pieces)
            for at in range(0, len(data), step):
                writer.write(data[at : at + step])
                if pieces > 1:
                    await asyncio.sleep(pause_s)
            if not whole:
                writer.write_eof()
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        finally:
            writer.close()
        self._statuses[status_of(answer)] += 1
        return answer


def head(size: int, extra: bytes = b"", route: str = "/v1/completions") -> bytes:
    line = f"POST {route} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n"
    return line.encode() + extra + b"\r\n"


def status_of(answer: bytes) -> int:
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def answers(data: bytes) -> list[bytes]:
    return [b"HTTP/1.1 " + part for part in data.split(b"HTTP/1.1 ")[1:]]


def unchunked(data: bytes) -> bytes:
    result = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        result, data = result + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return result
