# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Four times as many requests as an engine can run, over HTTP, from another process.

    PYTHONPATH=scripts python packages/infer/benchmarks/overload_server.py
        [--seconds 10] [--repeats 3] [--step-s 0.01 0]

The capacity is measured before and after: completions a second with as many clients as rows and
places in the queue, each of which waits for its answer. Then arrivals are a Poisson process at four
times that rate and wait for nothing (an open loop). Half of the requests are streams. An accepted
one waits for the requests that run and for a full queue, then runs itself: `bound_ms`, by the
measured capacity. All others must be refused with 429 and Retry-After of at least a second.

A step also waits for `--step-s` seconds, as for an accelerator. With 0 the engine, the server and
its refusals share the processor.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from measure import report

ROWS, QUEUE, TOKENS, TIMES, SEED = 8, 16, 8, 4, 5
IDLE_S = 2.0  # a server closes connections that are idle for longer
SERVER = """
import logging, sys, time
from flax import nnx
from dovetail_infer import Engine
from dovetail_infer.server import app, run
from dovetail_infer.testing import ByteTokenizer, TinyDecoder
logging.basicConfig(level=logging.INFO)
rows, queue, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
engine = Engine(
    TinyDecoder(rngs=nnx.Rngs(3)), tokenizer=ByteTokenizer(), page_size=4, step_tokens=32,
    max_rows=rows, max_length=64, max_queue=queue, kv_bytes=2**20, invariant=True,
)
engine.warmup()
executor = engine._executor
dispatch = executor.dispatch
def slow(batch, **options):
    time.sleep(step_s)
    return dispatch(batch, **options)
executor.dispatch = slow
run(app(engine, name="tiny", tokenizer=ByteTokenizer()), port=0)
"""


class Clients:
    """Requests to a server.

    Attributes:
        latencies_ms: Of the completed requests.
        statuses: Number of answers by status.
        retry_after_s: Values of the header.
        wall_s: Seconds in all loops.
    """

    def __init__(self, port: int) -> None:
        self.latencies_ms: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.retry_after_s: list[int] = []
        self.wall_s = 0.0
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []

    @property
    def rate(self) -> float:
        """Completions a second."""
        return len(self.latencies_ms) / self.wall_s

    async def closed_loop(self, seconds: float) -> None:
        """Keeps all rows and the queue full."""
        began = time.perf_counter()
        end = began + seconds

        async def client(number: int) -> None:
            await self._ask(number)
            while time.perf_counter() < end:
                await self._ask(number)

        await asyncio.gather(*(client(i) for i in range(ROWS + QUEUE)))
        self._close(began)

    async def open_loop(self, rate: float, seconds: float) -> None:
        """Sends requests at random moments, whatever becomes of them."""
        generator = np.random.default_rng(SEED)
        arrivals = np.cumsum(generator.exponential(1 / rate, size=int(rate * seconds)))
        began, tasks = time.perf_counter(), []
        for i, at in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            tasks.append(asyncio.create_task(self._ask(i)))
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        self._close(began)

    def _close(self, began: float) -> None:
        self.wall_s += time.perf_counter() - began
        while self._free:
            self._free.pop()[1].close()

    async def _ask(self, number: int) -> None:
        self._free = [x for x in self._free if time.perf_counter() - x[2] < IDLE_S]
        if self._free:
            reader, writer, _ = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        body: dict[str, Any] = {"model": "tiny", "prompt": f"{number:06}", "max_tokens": TOKENS}
        data = json.dumps({**body, "ignore_eos": True, "stream": number % 2 == 0}).encode()
        sent = time.perf_counter()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        status, headers, answer = await _answer(reader)
        self.statuses[status] += 1
        if status == 200:
            assert answer.endswith(b"data: [DONE]\n\n") or json.loads(answer)["choices"], answer
            self.latencies_ms.append((time.perf_counter() - sent) * 1e3)
        else:
            assert json.loads(answer)["error"]["type"] == "rate_limit_error", answer
            self.retry_after_s.append(int(headers["retry-after"]))
        self._free.append((reader, writer, time.perf_counter()))


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of an answer."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:-2])
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    return int(lines[0].split()[1]), headers, body


def overload(step_s: float, *, seconds: float, repeats: int) -> None:
    """Measures one server, and reports it."""
    line = [sys.executable, "-c", SERVER, str(ROWS), str(QUEUE), str(step_s)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            matches = (re.search(r"http://127.0.0.1:(\d+)", x) for x in process.stderr)
            port = int(next(match[1] for match in matches if match))
            asyncio.run(Clients(port).closed_loop(0.0))
            rounds = [asyncio.run(_round(port, seconds)) for _ in range(repeats)]
        finally:
            process.kill()
    statuses = sum((over.statuses for _, over in rounds), Counter())
    retries = [seconds for _, over in rounds for seconds in over.retry_after_s]
    if not set(statuses) <= {200, 429} or min(retries, default=1) < 1:
        sys.exit(f"only 200, and 429 with Retry-After from 1, may come, got {statuses}")
    waits = f"that waits {step_s * 1e3:g} ms for each step" if step_s else "on this processor alone"
    values = {
        f"p{percent}_ms": [float(np.percentile(over.latencies_ms, percent)) for _, over in rounds]
        for percent in (50, 99)
    }
    values["goodput"] = [over.rate / full.rate for full, over in rounds]
    for metric, results in values.items():
        report(
            f"{TIMES} times the capacity of an engine {waits}, open loop over HTTP",
            metric=metric,
            unit="ms" if metric.endswith("_ms") else "of the capacity",
            values=results,
            bound_ms=[(QUEUE + 2 * ROWS) / full.rate * 1e3 for full, _ in rounds],
            capacity_per_s=[full.rate for full, _ in rounds],
            accepted=statuses[200],
            refused=statuses[429],
            retry_after_s=[min(retries), max(retries)],
        )


async def _round(port: int, seconds: float) -> tuple[Clients, Clients]:
    """Returns clients after the capacity was measured, before and behind those of the overload."""
    full, over = Clients(port), Clients(port)
    await full.closed_loop(seconds / 4)
    await over.open_loop(TIMES * full.rate, seconds)
    await full.closed_loop(seconds / 4)
    return full, over


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step-s", type=float, nargs="+", default=[0.01, 0.0])
    options = parser.parse_args()
    for step_s in options.step_s:
        overload(step_s, seconds=options.seconds, repeats=options.repeats)


if __name__ == "__main__":
    main()
