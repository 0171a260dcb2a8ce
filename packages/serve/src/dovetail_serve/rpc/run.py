# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`start_grpc`: a gRPC server in the running event loop."""

import os
from pathlib import Path
from typing import Any

import grpc.aio

from dovetail_serve.rpc.health import MAX_WATCHES, Health
from dovetail_serve.rpc.service import Service
from dovetail_serve.serving.options import check_port, check_tls
from dovetail_serve.serving.server import Server

# Open calls beyond it are refused with RESOURCE_EXHAUSTED; each holds its message in memory.
# Watches of health have a limit of their own and cannot use this one up.
MAX_CALLS = 1024
# No grpc.max_concurrent_streams: gRPC ends streams above it with an error, where the queue refuses
# requests with the time to come back.
_OPTIONS = {
    # Two servers on one port would share its calls.
    "grpc.so_reuseport": 0,
    "grpc.max_send_message_length": -1,
    "grpc.max_metadata_size": 16 << 10,
    # A connection whose other end has vanished is closed after 60 + 20 seconds.
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # Clients may ask for the same every 10 seconds. Others are told to leave.
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    "grpc.max_connection_idle_ms": 600_000,
}


class GrpcServer:
    """A running gRPC server. `start_grpc` makes it.

    Args:
        server: The server of `grpc.aio`.
        health: Its health checks.
        port: Its port.

    Attributes:
        port: Its port.
    """

    def __init__(self, server: Any, health: Health, port: int) -> None:
        self._server, self._health, self.port = server, health, port

    async def stop(self, grace_s: float = 30.0) -> None:
        """Refuses new calls, waits for the open ones, and cancels them after `grace_s` seconds."""
        self._health.close()
        await self._server.stop(grace_s)


async def start_grpc(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8001,
    max_body: int = 64 << 20,
    token: str | None = None,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    control: bool = False,
) -> GrpcServer:
    """Serves the models of `server` over gRPC, in the running event loop.

    Args:
        server: The models. It is started and stopped by the caller.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        max_body: Largest message of a client, in bytes, decompressed. All open calls together
            may have 16 times as many; gRPC has a message in memory before it can be refused.
        token: Bearer token, required in the metadata `authorization` of all calls but
            `ServerLive`, `ServerReady` and health checks of the whole server. None: calls need
            none.
        tls: Paths of the certificate chain and the private key, in PEM. None: without encryption.
        control: Whether clients may load and unload models.

    Returns:
        The listening server. Stop it before `server`.

    Raises:
        OSError: The address cannot be listened on, or a file of `tls` cannot be read.
        ValueError: `port` is out of range, or the files of `tls` are refused.
    """
    check_port("port", port)
    if tls is not None:
        check_tls(*tls)
    options = {**_OPTIONS, "grpc.max_receive_message_length": max_body}
    rpc = grpc.aio.server(
        options=list(options.items()), maximum_concurrent_rpcs=MAX_CALLS + MAX_WATCHES
    )
    service = Service(server, token=token, control=control, max_body=max_body)
    health = Health(server, service.authenticate)
    rpc.add_generic_rpc_handlers((service.handlers(), health.handlers()))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = rpc.add_insecure_port(address)
        else:
            chain, key = (Path(path).read_bytes() for path in tls)
            credentials = grpc.ssl_server_credentials([(key, chain)])
            bound = rpc.add_secure_port(address, credentials)
    except RuntimeError as error:
        reason = str(error).partition(";")[0]  # after it comes advice to set a variable of gRPC
        raise OSError(
            f"gRPC must be able to listen on {address}, got: {reason}; choose another port, or an "
            "address of this machine"
        ) from error
    await rpc.start()
    return GrpcServer(rpc, health, bound)
