# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A load generator for HTTP servers on this machine, in the manner of Triton's perf_analyzer.

    python load.py --port 8000 --path /v2/models/mlp/infer --body request.json --connections 32

Each connection sends its next request when the answer to the last one has arrived (a closed loop).
Prints one JSON object: requests, statuses, seconds, requests a second, latencies in microseconds.
Latencies of the first second are left out. It addresses 127.0.0.1 alone.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

WARM_UP_S = 1.0


class Connection(asyncio.Protocol):
    """One connection in a closed loop until `until`."""

    def __init__(self, request: bytes, load: "Load") -> None:
        self._request, self._load = request, load
        self._answer = bytearray()
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        lower = bytes(self._answer[:head]).lower()
        if b"content-length:" in lower:
            length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._answer) < head + 4 + length:
                return
        elif not self._answer.endswith(b"0\r\n\r\n"):  # the last chunk
            return
        now = time.perf_counter()
        self._load.record(int(self._answer[9:12]), self._sent, now)
        self._answer.clear()
        if now < self._load.until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(error)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)


class Load:
    """Latencies and statuses of all connections."""

    def __init__(self, seconds: float) -> None:
        self.began = time.perf_counter()
        self.until = self.began + WARM_UP_S + seconds
        self.statuses: Counter[int] = Counter()
        self.latencies_us: list[float] = []

    def record(self, status: int, sent: float, now: float) -> None:
        if sent > self.began + WARM_UP_S:
            self.statuses[status] += 1
            self.latencies_us.append((now - sent) * 1e6)


async def run(options: argparse.Namespace) -> dict[str, object]:
    """Runs the load and returns its figures."""
    body = Path(options.body).read_bytes()
    request = (
        f"POST {options.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    load = Load(options.seconds)
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda: Connection(request, load), "127.0.0.1", options.port)
        for _ in range(options.connections)
    ]
    async with asyncio.timeout(WARM_UP_S + options.seconds + 30):  # a server that hangs
        lost = [await protocol.closed for _, protocol in connections]
    latencies = np.array(load.latencies_us)
    return {
        "requests": len(latencies),
        "statuses": dict(load.statuses),
        "lost": sum(error is not None for error in lost),
        "requests_per_s": len(latencies) / options.seconds,
        "p50_us": float(np.percentile(latencies, 50)),
        "p99_us": float(np.percentile(latencies, 99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--body", required=True, help="file with the body of the request")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
