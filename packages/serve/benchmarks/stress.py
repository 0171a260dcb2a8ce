# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random requests over HTTP and gRPC to one server while its versions are replaced: none hangs.

    PYTHONPATH=scripts python packages/serve/benchmarks/stress.py [REQUESTS] [SECONDS]

Requests have 1 to 200 rows over a largest batch of 64, three priorities, and sometimes a deadline
or a client that goes away. Every answer is compared with the function of the version that it names.
Server and clients share one process and one event loop. A request without an end within 20 seconds
counts as a failure, and so does any other end than an answer, a full queue or a deadline.
"""

import asyncio
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import grpc.aio
import numpy as np
import uvloop

from dovetail_serve import Batching, Server
from dovetail_serve.http.run import start_http
from dovetail_serve.rpc.run import start_grpc
from dovetail_serve.rpc.wire import MESSAGES, SERVICE
from dovetail_serve.testing import save_mlp
from measure import report

REQUESTS, SECONDS, SEED = 200_000, 180.0, 11
HTTP_CLIENTS, GRPC_CLIENTS = 40, 24
MAX_ROWS, MAX_BATCH, PRIORITIES = 200, 64, 3
SWAP_S, HANG_S = 1.0, 20.0
EXPECTED_ENDS = ("answered", "gone", "QueueFull", "DeadlineExceeded")
STATUSES = {429: "QueueFull", 504: "DeadlineExceeded"}
CODES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "QueueFull",
    grpc.StatusCode.DEADLINE_EXCEEDED: "DeadlineExceeded",
}
REQUEST, RESPONSE = MESSAGES["ModelInferRequest"], MESSAGES["ModelInferResponse"]


class Stress:
    """The requests of one run.

    Attributes:
        ends: Number of requests by their end.
    """

    def __init__(self, root: Path, exported: list[Path], functions: list, requests: int) -> None:
        self.ends: Counter[str] = Counter()
        self._root, self._exported = root, exported
        self._versions = itertools.count(1)
        self._left, self._random = requests, np.random.default_rng(SEED)
        self._rows = self._random.normal(size=(MAX_ROWS, 6)).astype("float32")
        # Functions of the odd and the even versions.
        self._expected = [function(self._rows) for function in functions]
        self.until = 0.0

    def put(self) -> None:
        """Puts the next version into the repository."""
        version = next(self._versions)
        partial = self._root / "mlp" / f".{version}.partial"
        shutil.copytree(self._exported[version % 2], partial)
        partial.rename(self._root / "mlp" / str(version))

    async def swap(self, server: Server) -> None:
        """Replaces versions until it is cancelled."""
        while True:
            await asyncio.sleep(SWAP_S)
            self.put()
            await server.load("mlp")

    async def client(self, ask) -> None:
        """Sends one request after another. `ask(first, stop, priority, timeout_us)` is a call."""
        while self._left > 0 and time.perf_counter() < self.until:
            self._left -= 1
            random = self._random
            rows = int(random.choice([1, 1, 1, random.integers(1, MAX_ROWS + 1)]))
            first = int(random.integers(0, MAX_ROWS - rows + 1))
            timeout_us = int(random.integers(100, 50_000)) if random.random() < 0.1 else 0
            leaves = random.random() < 0.05
            call = ask(first, first + rows, int(random.integers(PRIORITIES)), timeout_us)
            limit_s = float(random.uniform(0, 0.02)) if leaves else HANG_S
            try:
                end, version, y = await asyncio.wait_for(call, limit_s)
            except TimeoutError:
                self.ends["gone" if leaves else "hung"] += 1
                continue
            if end == "answered":
                expected = self._expected[int(version) % 2][first : first + rows]
                # float32 sums of at most 6 terms, against float64.
                right = y.shape == expected.shape and np.allclose(y, expected, rtol=1e-5, atol=1e-5)
                end = "answered" if right else "wrong"
            self.ends[end] += 1

    async def ask_grpc(self, call, first: int, stop: int, priority: int, timeout_us: int):
        """Returns the end of a call, the version and the outputs."""
        x = self._rows[first:stop]
        request = REQUEST(
            model_name="mlp",
            inputs=[{"name": "x", "datatype": "FP32", "shape": x.shape}],
            raw_input_contents=[x.tobytes()],
        )
        request.parameters["priority"].int64_param = priority
        if timeout_us:
            request.parameters["timeout"].int64_param = timeout_us
        try:
            response = RESPONSE.FromString(await call(request.SerializeToString()))
        except grpc.aio.AioRpcError as error:
            return CODES.get(error.code(), f"{error.code()}: {error.details()}"), "", None
        y = np.frombuffer(response.raw_output_contents[0], "float32")
        return "answered", response.model_version, y.reshape(tuple(response.outputs[0].shape))


class HttpClient:
    """One connection, which is opened again after a client that has left it."""

    def __init__(self, stress: Stress, port: int) -> None:
        self._stress, self._port = stress, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, first: int, stop: int, priority: int, timeout_us: int):
        """Returns the end of a request, the version and the outputs."""
        x = self._stress._rows[first:stop]
        parameters = {"priority": priority, "binary_data_output": True}
        if timeout_us:
            parameters["timeout"] = timeout_us
        tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
        tensor["parameters"] = {"binary_data_size": x.nbytes}
        text = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
        head = (
            "POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\n"
            f"Content-Length: {len(text) + x.nbytes}\r\n\r\n"
        ).encode()
        try:
            status, headers, body = await self._exchange(head + text + x.tobytes())
        except BaseException:
            self.close()
            raise
        if status != 200:
            return STATUSES.get(status, f"{status}: {body[:200]!r}"), "", None
        length = int(headers["inference-header-content-length"])
        document = json.loads(body[:length])
        y = np.frombuffer(body[length:], "float32").reshape(document["outputs"][0]["shape"])
        return "answered", document["model_version"], y

    async def _exchange(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:-2])
        body = await reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run(root: Path, stress: Stress, seconds: float) -> tuple[float, int]:
    """Returns the wall time of all requests and the number of versions that were loaded."""
    stress.put()
    batching = Batching(max_batch=MAX_BATCH, priorities=PRIORITIES, queue=32)
    async with Server(root, batching=batching) as server:
        web, rpc = await start_http(server, port=0), await start_grpc(server, port=0)
        swaps = asyncio.create_task(stress.swap(server))
        clients = [HttpClient(stress, web.port) for _ in range(HTTP_CLIENTS)]
        began = time.perf_counter()
        stress.until = began + seconds
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rpc.port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            await asyncio.gather(
                *(stress.client(client.ask) for client in clients),
                *(
                    stress.client(lambda *options: stress.ask_grpc(call, *options))
                    for _ in range(GRPC_CLIENTS)
                ),
            )
        wall_s = time.perf_counter() - began
        swaps.cancel()
        for client in clients:
            client.close()
        await asyncio.gather(swaps, return_exceptions=True)
        counts = server.statistics("mlp")
        if counts.queued or web._application._bodies.held:
            stress.ends["left behind"] += 1
        await rpc.stop(5.0)
        await web.stop(5.0)
    return wall_s, counts.loads


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        exported = [Path(folder) / "even", Path(folder) / "odd"]
        functions = [save_mlp(path, seed=seed) for seed, path in enumerate(exported)]
        root = Path(folder) / "repository"
        (root / "mlp").mkdir(parents=True)
        stress = Stress(root, exported, functions, requests)
        wall_s, loads = uvloop.run(run(root, stress, seconds))
    total = sum(stress.ends.values())
    report(
        f"random requests, {HTTP_CLIENTS} HTTP and {GRPC_CLIENTS} gRPC clients, a swap a second",
        metric="wall_us",
        unit="us",
        values=[wall_s / total * 1e6],
        requests=total,
        failures=sum(n for end, n in stress.ends.items() if end not in EXPECTED_ENDS),
        ends=dict(sorted(stress.ends.items())),
        loads=loads,
    )


if __name__ == "__main__":
    main()
