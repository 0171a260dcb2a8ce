# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of a `ModelInfer` call over gRPC, against a bare `grpc.aio` echo of equal bytes.

A multilayer perceptron (64 to 64 to 10) on one row of FP32, with batching, for 32 concurrent calls
on one channel. The server has core 0 and the client has core 1. CPU time is that of the server's
process, user and system, read by the client around its calls. The echo answers a constant of the
size of a response on the same event loop: the limit.

A call takes several passes of the event loop until it is a request, so the batcher looks for more
requests in a few passes. The second case waits 1 ms for more (`max_delay_ms=1`).
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc.aio
import numpy as np
import uvloop

from dovetail_serve import Batching, Server
from dovetail_serve.rpc.run import start_grpc
from dovetail_serve.rpc.wire import MESSAGES, SERVICE
from dovetail_serve.testing import save_mlp
from measure import report, rounds

CALLS, WARM_UP_S, SECONDS, REPEATS = 32, 1.0, 3.0, 4
DELAYS_MS = (0.0, 1.0)
X = np.random.default_rng(1).normal(size=(1, 64)).astype("float32")
METHOD = "ModelInfer"
REQUEST = MESSAGES["ModelInferRequest"](
    model_name="mlp",
    inputs=[{"name": "x", "datatype": "FP32", "shape": X.shape}],
    raw_input_contents=[X.tobytes()],
).SerializeToString()


def main() -> None:
    """Runs both servers in rounds and prints a line for each metric."""
    with tempfile.TemporaryDirectory() as folder:
        save_mlp(Path(folder) / "mlp" / "1", widths=(64, 64, 10), batch_sizes=(1, 4, 16, 64))
        servers = {str(delay): ["serve", folder, str(delay)] for delay in DELAYS_MS}
        servers |= {"echo": ["echo"], "again": ["echo"]}
        results = rounds({n: lambda s=s: measured(s) for n, s in servers.items()}, repeats=REPEATS)
    for delay, metric in itertools.product(DELAYS_MS, ("cpu_us", "p50_us", "p99_us")):
        ours = results[str(delay)]
        report(
            f"1x64 MLP over gRPC, {CALLS} concurrent calls, max_delay_ms={delay}, against an echo",
            metric=metric,
            unit="us",
            values=[figures[metric] for figures in ours],
            peer="grpcio",
            peer_values=[figures[metric] for figures in results["echo"]],
            peer_again=[figures[metric] for figures in results["again"]],
            requests_per_s=min(figures["requests_per_s"] for figures in ours),
            peer_requests_per_s=min(figures["requests_per_s"] for figures in results["echo"]),
        )


def measured(server: list[str]) -> dict[str, float]:
    """Starts a server, loads it, stops it. Returns the client's figures."""
    script = [sys.executable, str(Path(__file__).resolve())]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    pinned = ["taskset", "-c", "0", *script, *server]
    with subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            port = process.stdout.readline().strip()
            client = ["taskset", "-c", "1", *script, "client", port, str(process.pid)]
            return json.loads(subprocess.check_output(client, env=environment))
        finally:
            process.kill()


async def serve(folder: str, delay_ms: str) -> None:
    """Serves the bundle until the process is killed."""
    async with Server(folder, batching=Batching(max_delay_ms=float(delay_ms))) as server:
        handle = await start_grpc(server, port=0)
        print(handle.port, flush=True)
        await asyncio.Event().wait()


async def echo() -> None:
    """Answers each call with the bytes of one response until the process is killed."""
    response = MESSAGES["ModelInferResponse"](
        model_name="mlp",
        model_version="1",
        outputs=[{"name": "y", "datatype": "FP32", "shape": (1, 10)}],
        raw_output_contents=[bytes(40)],
    ).SerializeToString()

    async def answer(data: bytes, context: object) -> bytes:
        return response

    server = grpc.aio.server()
    methods = {METHOD: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()


async def client(port: str, pid: str) -> None:
    """Calls in a closed loop. Prints requests a second, latencies, and the server's CPU time."""
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        response = MESSAGES["ModelInferResponse"].FromString(await call(REQUEST))
        assert [len(data) for data in response.raw_output_contents] == [40]

        async def loop(until: float) -> None:
            while (sent := time.perf_counter()) < until:
                await call(REQUEST)
                latencies.append((time.perf_counter() - sent) * 1e6)

        async def load(seconds: float) -> None:
            until = time.perf_counter() + seconds
            await asyncio.gather(*(loop(until) for _ in range(CALLS)))

        await load(WARM_UP_S)
        latencies.clear()
        before, began = cpu_s(pid), time.perf_counter()
        await load(SECONDS)
        used, seconds = cpu_s(pid) - before, time.perf_counter() - began
    figures = {
        "cpu_us": used / len(latencies) * 1e6,
        "p50_us": float(np.percentile(latencies, 50)),
        "p99_us": float(np.percentile(latencies, 99)),
        "requests_per_s": len(latencies) / seconds,
    }
    print(json.dumps(figures))


def cpu_s(pid: str) -> float:
    """Returns the CPU seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    roles = {"serve": serve, "echo": echo, "client": client}
    if sys.argv[1:]:
        uvloop.run(roles[sys.argv[1]](*sys.argv[2:]))
    else:
        main()
