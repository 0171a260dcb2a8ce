# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mutated HTTP requests to a server in a process of its own: no crash, no hang, no leak.

    PYTHONPATH=scripts python packages/serve/benchmarks/fuzz_http.py [REQUESTS] [SECONDS]

Each request is a valid one with bits flipped and pieces cut out, repeated or put in: line breaks,
lengths, codings, NUL. Every 100th is left valid, and its answer is compared with NumPy. At the end
all connections and tasks must be gone, and memory is compared with that after the first tenth,
when all caches are filled. One line reports the time of a request; `failures` must be 0.
"""

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from dovetail_serve.testing import save_mlp
from measure import report

REQUESTS, SECONDS, CONNECTIONS, SEED = 100_000, 420.0, 16, 7
# A request that is not answered and not closed in this time hangs.
HANG_S = 20.0
PIECES = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"%00", b"\xff\xfe", b"9" * 30, b"-1"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: upgrade\r\n"),
    *(b"Inference-Header-Content-Length: 7\r\n", b"Content-Encoding: gzip\r\n", b"{" * 50, b"NaN"),
    *(b'"shape":[-1]', b'"binary_data_size":1', b"A" * 20_000, b"X: y\r\n" * 120),
)
SERVER = """
import sys
from dovetail_serve import Server
from dovetail_serve.http import run
run(Server(sys.argv[1]), http=int(sys.argv[2]), max_body=1 << 20)
"""


def valid(body: bytes, extra: bytes = b"") -> bytes:
    head = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    return head + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def seeds(x: np.ndarray) -> list[bytes]:
    """Valid requests: JSON, binary, chunked, and two of other routes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    text = json.dumps({"inputs": [tensor | {"data": x.ravel().tolist()}]}).encode()
    binary = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": x.nbytes}}]})
    header = b"Inference-Header-Content-Length: %d\r\n" % len(binary)
    chunked = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    return [
        valid(text),
        valid(binary.encode() + x.tobytes(), header),
        chunked + b"Connection: close\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(text), text),
        b"GET /v2/models/mlp/stats HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ]


def mutated(generator: random.Random, data: bytes) -> bytes:
    """Returns `data` with one to five changes."""
    result = bytearray(data)
    for _ in range(generator.randint(1, 5)):
        at = generator.randrange(len(result) + 1)
        kind = generator.randrange(4)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del result[at : at + generator.randrange(40)]
        elif kind == 2:
            result[at:at] = generator.choice(PIECES)
        else:
            result[at:at] = result[at : at + generator.randrange(60)]
    return bytes(result)


async def ask(port: int, data: bytes, *, whole: bool = True) -> bytes:
    """Returns all that the server sends until it closes the connection.

    A request that may not be whole ends the client's direction, so that nobody waits for the rest.
    uvicorn then drops what is not answered yet, as for a client that is gone.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if not whole:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


class Fuzz:
    """One run against a server.

    Attributes:
        failures: Valid requests with a wrong answer, and requests that hung.
        statuses: Number of answers by status; 0 for connections closed without one.
    """

    def __init__(self, port: int, pid: int, requests: int, seconds: float) -> None:
        self.port, self.pid, self.requests = port, pid, requests
        self.until = time.monotonic() + seconds
        self.sent = self.failures = self.rss_bytes = 0
        self.statuses: Counter[int] = Counter()
        self._random = random.Random(SEED)

    async def client(self, seeds: list[bytes], expected: np.ndarray) -> None:
        while self.sent < self.requests and time.monotonic() < self.until:
            self.sent += 1
            check = self.sent % 100 == 0
            if self.sent == self.requests // 10:
                self.rss_bytes = rss_bytes(self.pid)
            data = seeds[0] if check else mutated(self._random, self._random.choice(seeds))
            try:
                answer = await asyncio.wait_for(ask(self.port, data, whole=check), HANG_S)
            except TimeoutError:
                self.failures += 1
                continue
            self.statuses[int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0] += 1
            if check and not correct(answer, expected):
                self.failures += 1


def correct(answer: bytes, expected: np.ndarray) -> bool:
    """Returns whether a response holds the expected values."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        return False
    values = np.array(json.loads(body)["outputs"][0]["data"])
    # float32 sums of at most 6 terms.
    return bool(np.allclose(values, expected.ravel(), rtol=1e-5, atol=1e-6))


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    x = np.random.default_rng(SEED).normal(size=(2, 6)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        expected = save_mlp(f"{folder}/mlp/1")(x)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        line = [sys.executable, "-c", SERVER, folder, str(port)]
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as process:
            try:
                asyncio.run(run(process, port, seeds(x), expected, requests, seconds))
            finally:
                process.kill()


async def run(
    process: subprocess.Popen[bytes],
    port: int,
    data: list[bytes],
    expected: np.ndarray,
    requests: int,
    seconds: float,
) -> None:
    """Waits for the server, sends the requests and prints the line."""
    until = time.monotonic() + 60
    while True:
        try:
            if correct(await ask(port, data[0]), expected):
                break
        except OSError:
            pass
        if time.monotonic() > until:
            raise RuntimeError(f"the server must start, got exit status {process.poll()}")
        await asyncio.sleep(0.1)
    files = open_files(process.pid)
    fuzz = Fuzz(port, process.pid, requests, seconds)
    began = time.perf_counter()
    await asyncio.gather(*[fuzz.client(data, expected) for _ in range(CONNECTIONS)])
    wall_s = time.perf_counter() - began
    if not correct(await ask(port, data[0]), expected) or process.poll() is not None:
        fuzz.failures += 1
    report(
        "mutated HTTP requests",
        metric="wall_us",
        unit="us",
        values=[wall_s / fuzz.sent * 1e6],
        requests=fuzz.sent,
        failures=fuzz.failures,
        statuses={str(status): n for status, n in sorted(fuzz.statuses.items())},
        rss_growth_bytes=rss_bytes(process.pid) - fuzz.rss_bytes,
        # The last connection may not be gone yet.
        open_files_growth=open_files(process.pid) - files,
    )


if __name__ == "__main__":
    main()
