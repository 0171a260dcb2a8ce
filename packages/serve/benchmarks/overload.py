# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Four times as many requests as a model can run, over HTTP: latency of those that are accepted.

Arrivals are a Poisson process and do not wait for answers (an open loop). The model takes 20 ms for
a batch of 8 rows, in a host function that waits, so its capacity is 400 requests a second on any
machine. The queue holds 64 requests. An accepted one waits for at most the batch that runs, then
for the 8 batches of a full queue, the last of which is its own: `bound_ms`, by the measured time of
a batch. All others must be refused with 429 and Retry-After of at least a second. Server and
clients share one process and one event loop.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import uvloop

from dovetail_serve import Batching, HostFunction, Server, Tensor, export
from dovetail_serve.http.run import start_http
from measure import report

BATCH, BATCH_S, QUEUE, TIMES = 8, 0.02, 64, 4
ROUND_S, REPEATS, SEED = 3.0, 5, 5
WIDTH = 16


def save(path: Path) -> None:
    generator = np.random.default_rng(0)
    tensor = Tensor(("batch", WIDTH), "float32")
    export(
        lambda params, *, x: {"y": jnp.tanh(x @ params["w"])},
        {"w": generator.normal(size=(WIDTH, 3)).astype("float32")},
        inputs={"x": tensor},
        example={"x": generator.normal(size=(3, WIDTH)).astype("float32")},
        platforms=("cpu",),
        batch_sizes=(BATCH,),
        before=HostFunction("wait", {"x": tensor}),
    ).save(path)


def wait(arrays, assets):
    """Returns its inputs after the time of a batch."""
    time.sleep(BATCH_S)
    return arrays


class Overload:
    """Requests of one round.

    Attributes:
        latencies_ms: Of the accepted requests.
        statuses: Number of answers by status.
        retry_after_s: Values of the header.
    """

    def __init__(self, port: int, request: bytes) -> None:
        self.latencies_ms: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.retry_after_s: list[int] = []
        self._port, self._request = port, request
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def run(self, generator: np.random.Generator) -> None:
        """Sends requests for a round and waits for all answers."""
        rate = TIMES * BATCH / BATCH_S
        arrivals = np.cumsum(generator.exponential(1 / rate, size=int(rate * ROUND_S)))
        began, tasks = time.perf_counter(), []
        for at in arrivals:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            tasks.append(asyncio.create_task(self._ask()))
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        for _, writer in self._free:
            writer.close()

    async def _ask(self) -> None:
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        sent = time.perf_counter()
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        await reader.readexactly(int(headers["content-length"]))
        status = int(head.split()[1])
        self.statuses[status] += 1
        if status == 200:
            self.latencies_ms.append((time.perf_counter() - sent) * 1e3)
        else:
            self.retry_after_s.append(int(headers["retry-after"]))
        self._free.append((reader, writer))


async def run(root: Path) -> tuple[list[Overload], float]:
    """Returns the rounds and the measured seconds of a batch."""
    data = np.random.default_rng(SEED).normal(size=WIDTH).tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    generator, results = np.random.default_rng(SEED), []
    async with Server(root, batching=Batching(queue=QUEUE), functions={"wait": wait}) as server:
        web = await start_http(server, port=0)
        for _ in range(REPEATS):
            results.append(Overload(web.port, request))
            await results[-1].run(generator)
        counts = server.statistics("m")
        batch_s = (counts.pad_s + counts.compute_s + counts.split_s) / counts.successes
        await web.stop(5.0)
    return results, batch_s


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "m" / "1")
        results, batch_s = uvloop.run(run(Path(folder)))
    statuses = sum((result.statuses for result in results), Counter())
    retries = [seconds for result in results for seconds in result.retry_after_s]
    if statuses.keys() != {200, 429} or min(retries) < 1:
        raise RuntimeError(f"only 200, and 429 with Retry-After from 1, got {statuses}")
    for percent in (50, 99):
        report(
            f"{TIMES} times the capacity of a model, open loop over HTTP",
            metric=f"p{percent}_ms",
            unit="ms",
            values=[float(np.percentile(r.latencies_ms, percent)) for r in results],
            bound_ms=(1 + QUEUE / BATCH) * batch_s * 1e3,
            batch_ms=batch_s * 1e3,
            accepted=statuses[200],
            refused=statuses[429],
            accepted_per_s=statuses[200] / (REPEATS * ROUND_S),
            retry_after_s=[min(retries), max(retries)],
        )


if __name__ == "__main__":
    main()
