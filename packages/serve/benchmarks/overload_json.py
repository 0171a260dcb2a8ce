# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON images of 224 x 224 x 3 at four times the capacity: goodput, and the CPU time of a refusal.

The server is a process of its own, whose CPU time is read from /proc, so that of the client does
not count. Rounds of two kinds take turns: a closed loop that keeps the model busy (the capacity,
and the CPU time of an answer); arrivals of a Poisson process at four times that capacity (goodput,
and the CPU time of all refusals by difference). The model takes 60 ms for a batch of 2, in a host
function that waits, so its capacity is about 33 a second on any machine: a quarter of the images
that one core can decode.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import uvloop

from dovetail_serve import HostFunction, Tensor, export
from measure import report

SHAPE, BATCH, BATCH_S, QUEUE, TIMES = (224, 224, 3), 2, 0.06, 8, 4
ROUND_S, REPEATS, SEED = 6.0, 5, 5
PATH = "/v2/models/m/infer"


def save(path: Path) -> None:
    generator = np.random.default_rng(0)
    tensor = Tensor(("batch", *SHAPE), "float32")
    export(
        lambda params, *, x: {"y": jnp.mean(x, axis=(1, 2)) @ params["w"]},
        {"w": generator.normal(size=(3, 4)).astype("float32")},
        inputs={"x": tensor},
        example={"x": generator.normal(size=(2, *SHAPE)).astype("float32")},
        platforms=("cpu",),
        batch_sizes=(BATCH,),
        before=HostFunction("wait", {"x": tensor}),
    ).save(path)


def wait(arrays, assets):
    """Returns its inputs after the time of a batch."""
    time.sleep(BATCH_S)
    return arrays


class Client:
    """Requests of one round, and their statuses."""

    def __init__(self, port: int, request: bytes) -> None:
        self.statuses: Counter[int] = Counter()
        self._port, self._request = port, request
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self) -> None:
        """Sends a request on a free connection and reads its answer."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        await reader.readexactly(int(headers["content-length"]))
        self.statuses[int(head.split()[1])] += 1
        if headers.get("connection") == "close":
            writer.close()
        else:
            await writer.drain()
            self._free.append((reader, writer))

    async def loop(self, until: float) -> None:
        """Sends one request after another."""
        while time.perf_counter() < until:
            await self.ask()

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(pid: int, client: Client, kind: str, rate: float) -> tuple[float, float]:
    """Runs a round. Returns its answers a second and the CPU seconds of the server."""
    before, began = cpu_s(pid), time.perf_counter()
    if kind == "open":
        generator, tasks = np.random.default_rng(SEED), []
        for at in np.cumsum(generator.exponential(1 / rate, size=int(rate * ROUND_S))):
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            tasks.append(asyncio.create_task(client.ask()))
        # Those that come after the arrivals are no part of the rate.
        answered_per_s = client.statuses[200] / (time.perf_counter() - began)
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)
    else:
        await asyncio.gather(*(client.loop(began + ROUND_S) for _ in range(QUEUE)))
        answered_per_s = client.statuses[200] / (time.perf_counter() - began)
    client.close()
    return answered_per_s, cpu_s(pid) - before


def body() -> bytes:
    """Returns a request with one image, with four decimals as of pixels that were normalized."""
    x = np.random.default_rng(SEED).normal(size=(1, *SHAPE)).round(4)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


async def rounds(pid: int, port: int) -> dict[str, list[float]]:
    data, results = body(), {"goodput": [], "refusal": [], "answer_ms": [], "refusal_ms": []}
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    for repeat in range(REPEATS + 1):
        figures, statuses = {}, {}
        rate = TIMES * BATCH / BATCH_S
        for kind in ("closed", "open"):
            client = Client(port, head.encode() + data)
            figures[kind] = await measure(pid, client, kind, rate)
            statuses[kind] = client.statuses
        if statuses["closed"].keys() != {200} or statuses["open"].keys() != {200, 429}:
            raise RuntimeError(f"200 alone, then 200 and 429, got {statuses}")
        if not repeat:  # warm-up
            continue
        (capacity, closed_cpu_s), (goodput, open_cpu_s) = figures["closed"], figures["open"]
        answer_s = closed_cpu_s / statuses["closed"][200]
        accepted, refused = statuses["open"][200], statuses["open"][429]
        refusal_s = (open_cpu_s - accepted * answer_s) / refused
        results["goodput"].append(goodput / capacity)
        results["refusal"].append(refusal_s / answer_s)
        results["answer_ms"].append(answer_s * 1e3)
        results["refusal_ms"].append(refusal_s * 1e3)
    return results


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "m" / "1")
        options = ["--http", "0", "--queue", str(QUEUE), "--function", "wait=overload_json:wait"]
        environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:scripts"}
        line = [sys.executable, "-m", "dovetail_serve", "serve", folder, *options]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as server:
            assert server.stderr is not None
            port = 0
            for text in server.stderr:
                if "listening for HTTP on port" in text:
                    port = int(text.rpartition(" ")[2])
                if "loaded model=m" in text:
                    break
            results = uvloop.run(rounds(server.pid, port))
            server.terminate()
    case = f"JSON images at {TIMES} times the capacity"
    common = {
        "body_bytes": len(body()),
        "answer_cpu_ms": statistics.median(results["answer_ms"]),
        "refusal_cpu_ms": statistics.median(results["refusal_ms"]),
    }
    report(case, metric="goodput", unit="of capacity", values=results["goodput"], **common)
    report(case, metric="refusal", unit="of an answer", values=results["refusal"], **common)


if __name__ == "__main__":
    main()
