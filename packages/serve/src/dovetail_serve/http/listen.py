# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`HttpServer`: uvicorn with our protocol, in the running event loop and without its signals."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence

import uvicorn

from dovetail_serve.http.application import Application
from dovetail_serve.http.limits import Limits
from dovetail_serve.http.protocol import limited

# Connections that the kernel holds until they are accepted.
_BACKLOG = 2048


class HttpServer:
    """A running HTTP server. `start_http` makes it.

    Args:
        application: Answers its requests.
        server: uvicorn's server on an open socket.
        port: Port of the socket; an attribute.
    """

    def __init__(self, application: Application, server: "_Uvicorn", port: int) -> None:
        self._application, self._server, self.port = application, server, port
        self._task = asyncio.get_running_loop().create_task(server.serve())

    def drain(self) -> None:
        """Answers 503 for readiness from now on. Other requests are answered as before."""
        self._application.draining = True

    async def stop(self, grace_s: float = 30.0) -> None:
        """Closes the port, waits for open requests, and cancels them after `grace_s` seconds.

        The time is one second at least, so that answers that are ready can be sent.
        """
        self.drain()
        config = self._server.config
        config.timeout_graceful_shutdown = max(1.0, grace_s)  # type: ignore[assignment], any number of seconds
        self._server.should_exit = True
        await self._task


class _Uvicorn(uvicorn.Server):
    """uvicorn's server on a socket of ours. Signals are those of the program around it."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener
        self.listens = asyncio.Event()

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await super().startup([self._listener])
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def listen(
    application: Application,
    *,
    host: str,
    port: int,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None,
    limits: Limits,
) -> HttpServer:
    """Serves an application in the running event loop.

    Args:
        application: Answers the requests.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        tls: Paths of the certificate chain and the private key, in PEM. None: without encryption.
        limits: Limits of connections.

    Returns:
        The listening server.

    Raises:
        OSError: The address cannot be listened on, or a file of `tls` cannot be read.
    """
    chain, key = tls or (None, None)
    config = uvicorn.Config(
        application,  # type: ignore[arg-type]
        http=limited(limits, application.refuse),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type], any number of seconds
        ssl_certfile=chain,
        ssl_keyfile=key,
    )
    config.load()
    ipv6 = ":" in host
    try:
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=ipv6 and socket.has_dualstack_ipv6(),  # "::" is IPv4 too, as for gRPC
        )
    except OSError as error:
        address = f"[{host}]:{port}" if ipv6 else f"{host}:{port}"
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise OSError(
            f"HTTP must be able to listen on {address}, got: {reason}; choose another port, or an "
            "address of this machine"
        ) from error
    server = _Uvicorn(config, listener)
    running = HttpServer(application, server, listener.getsockname()[1])
    await server.listens.wait()
    return running
