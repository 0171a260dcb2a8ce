# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A repository served over HTTP and gRPC on a thread, for Triton's client in this one."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dovetail_serve import HostFunction, Server, Tensor, export
from dovetail_serve.testing import save_mlp

NARROW = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32")
WIDE = ("int64", "uint64", "float64")
TIMEOUT_S = 60.0


class Served:
    """Ports of the two servers, and their `Server`.

    Attributes:
        server: The models.
        http: Address of the HTTP server.
        grpc: Address of the gRPC server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, ports: list[int]) -> None:
        self._loop, self.server = loop, server
        self.http, self.grpc = (f"127.0.0.1:{port}" for port in ports)

    def infer(self, name: str, inputs: Any, **options: Any) -> Any:
        """Returns the outputs of the server in this process."""
        coroutine = self.server.infer(name, inputs, **options)
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(TIMEOUT_S).outputs


def save_identity(path: Path, dtypes: tuple[str, ...]) -> None:
    """Saves a bundle that returns each input "d" of dtype d, [batch, 5], as "d.out"."""
    generator = np.random.default_rng(2)
    export(
        lambda params, **inputs: {f"{name}.out": x for name, x in inputs.items()},
        {"w": np.zeros(1, "float32")},
        inputs={d: Tensor(("batch", 5), d) for d in dtypes},
        example={d: generator.integers(0, 2, (3, 5)).astype(jax.numpy.dtype(d)) for d in dtypes},
        batch_sizes=(1, 4),
        platforms=("cpu",),
    ).save(path)


def lengths(arrays: Any, assets: Any) -> dict[str, np.ndarray]:
    """The host function before the program: the length of each text, and its first byte."""
    texts = arrays["text"]
    return {"x": np.float32([[len(t), t[0] if t else 0] for t in texts]).reshape(-1, 2)}


def labels(arrays: Any, assets: Any) -> dict[str, np.ndarray]:
    """The host function after the program: its results as texts."""
    out = np.empty(len(arrays["y"]), object)
    out[:] = [b"%d\xff" % int(y) for y in arrays["y"]]
    return {"label": out}


def save_texts(path: Path) -> None:
    """Saves a bundle from a text to a label: its length plus its first byte."""
    export(
        lambda params, *, x: {"y": x.sum(axis=1) + params["w"][0]},
        {"w": np.zeros(1, "float32")},
        inputs={"x": Tensor(("batch", 2), "float32")},
        example={"x": np.float32([[1, 2], [3, 4], [5, 6]])},
        batch_sizes=(1, 4),
        platforms=("cpu",),
        before=HostFunction("lengths", {"text": Tensor(("batch",), "bytes")}),
        after=HostFunction("labels", {"label": Tensor(("batch",), "bytes")}),
    ).save(path)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The models "mlp" (versions 1 and 2), "narrow", "wide" and "texts", over both protocols."""
    from dovetail_serve.http.run import start_http
    from dovetail_serve.rpc.run import start_grpc

    root = tmp_path_factory.mktemp("repository")
    for version in (1, 2):
        save_mlp(root / "mlp" / str(version), seed=version)
    save_mlp(root / "spare" / "1", seed=3)
    save_identity(root / "narrow" / "1", (*NARROW, "bfloat16"))
    with jax.enable_x64(True):
        save_identity(root / "wide" / "1", WIDE)
    save_texts(root / "texts" / "1")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = Server(root, versions="all", functions={"lengths": lengths, "labels": labels})
    handles: list[Any] = []

    async def start() -> list[int]:
        await server.start()
        handles.append(await start_http(server, port=0, control=True))
        handles.append(await start_grpc(server, port=0, control=True))
        return [handle.port for handle in handles]

    async def stop() -> None:
        for handle in handles:
            await handle.stop(0.0)
        await server.stop(0.0)

    try:
        ports = asyncio.run_coroutine_threadsafe(start(), loop).result(TIMEOUT_S)
        yield Served(loop, server, ports)
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
