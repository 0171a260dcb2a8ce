# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A server with gRPC on a thread of its own, and a client made of grpcio and the wire's classes."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dovetail_serve.rpc.run import GrpcServer, start_grpc
from dovetail_serve.rpc.wire import MESSAGES, SERVICE
from dovetail_serve.serving.datatypes import oip_name, to_raw
from dovetail_serve.serving.server import Server
from dovetail_serve.testing import save_mlp

TIMEOUT_S = 120.0  # only a hang takes so long


class Client:
    """Calls the service over one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def method(self, name: str) -> Any:
        """Returns the stub of a unary method."""
        return self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            MESSAGES[f"{name}Request"].SerializeToString,
            MESSAGES[f"{name}Response"].FromString,
        )

    def __call__(self, method: str, /, *, metadata: Any = None, **fields: Any) -> Any:
        """Returns the response to a unary call."""
        request = MESSAGES[f"{method}Request"](**fields)
        return self.method(method)(request, timeout=TIMEOUT_S, metadata=metadata)

    def send(self, name: str, data: bytes) -> bytes:
        """Returns the response to the bytes of a request."""
        return self.channel.unary_unary(f"/{SERVICE}/{name}")(data, timeout=TIMEOUT_S)

    def stream(self, requests: Any, **options: Any) -> Any:
        """Returns the call of ModelStreamInfer."""
        stub = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            MESSAGES["ModelInferRequest"].SerializeToString,
            MESSAGES["ModelStreamInferResponse"].FromString,
        )
        return stub(requests, timeout=TIMEOUT_S, **options)

    def refusal(self, method: str, /, **fields: Any) -> grpc.RpcError:
        """Returns the error of a unary call that must fail."""
        with pytest.raises(grpc.RpcError) as error:
            self(method, **fields)
        return error.value


class Served:
    """A server on the loop of another thread.

    Attributes:
        server: The server.
        client: A client of its gRPC port.
        handle: The gRPC server.
        port: Its port.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, handle: GrpcServer) -> None:
        self._loop, self.server, self.handle, self.port = loop, server, handle, handle.port
        self.client: Any = None

    def run(self, coroutine: Any) -> Any:
        """Returns the result of a coroutine on the server's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(TIMEOUT_S)

    def read(self, function: Callable[[], Any]) -> Any:
        """Returns `function()`, called on the server's loop."""

        async def call() -> Any:
            return function()

        return self.run(call())

    def until_queued(self, count: int) -> None:
        """Returns once `count` requests to the model "mlp" wait."""

        async def wait() -> None:
            while self.server.statistics("mlp").queued != count:
                await asyncio.sleep(0)  # lets the loop take the next event

        self.run(wait())


@contextlib.contextmanager
def serving(root: Path, *, rpc: dict[str, Any] | None = None, **options: Any) -> Iterator[Served]:
    """Serves a repository: `rpc` are options of `start_grpc`, others those of `Server`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Server, Any]:
        server = Server(root, **options)
        await server.start()
        return server, await start_grpc(server, port=0, **(rpc or {}))

    async def stop(server: Server, handle: Any) -> None:
        await handle.stop(0.0)
        await server.stop(0.0)

    try:
        future = asyncio.run_coroutine_threadsafe(start(), loop)
        server, handle = future.result(TIMEOUT_S)
        served = Served(loop, server, handle)
        try:
            with grpc.insecure_channel(f"127.0.0.1:{handle.port}") as channel:
                served.client = Client(channel)
                yield served
        finally:
            served.run(stop(server, handle))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def infer_fields(model: str, /, **arrays: np.ndarray) -> dict[str, Any]:
    """Returns the fields of a ModelInferRequest with raw inputs."""
    return {
        "model_name": model,
        "inputs": [
            {"name": name, "datatype": oip_name(array.dtype), "shape": array.shape}
            for name, array in arrays.items()
        ],
        "raw_input_contents": [to_raw(array) for array in arrays.values()],
    }


@pytest.fixture(scope="session", name="serving")
def _serving() -> Any:
    return serving


@pytest.fixture(scope="session", name="infer_fields")
def _infer_fields() -> Any:
    return infer_fields


@pytest.fixture(scope="session")
def mlp_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two versions of the model "mlp", f32[batch, 6] to f32[batch, 3]."""
    root = tmp_path_factory.mktemp("repository")
    for version in (1, 2):
        save_mlp(root / "mlp" / str(version), seed=version)
    return root


@pytest.fixture(scope="session")
def mlp(mlp_root: Path) -> Iterator[Served]:
    """That repository served, both versions and the label "stable"."""
    with serving(mlp_root, versions="all", labels={"mlp": {"stable": 1}}) as served:
        yield served
