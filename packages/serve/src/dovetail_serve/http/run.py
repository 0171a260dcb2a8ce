# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run`: a server over HTTP, and gRPC if asked for, until a signal ends it."""

import asyncio
import functools
import ipaddress
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dovetail_serve.http.access import AccessLog
from dovetail_serve.http.asgi import app
from dovetail_serve.http.limits import DEFAULT_LIMITS, Limits
from dovetail_serve.http.listen import HttpServer, listen
from dovetail_serve.serving.options import check_port, check_tls
from dovetail_serve.serving.server import Server

_log = logging.getLogger("dovetail_serve")
_STOPS = (signal.SIGINT, signal.SIGTERM)

Path = str | os.PathLike[str]


def run(
    server: Server,
    *,
    host: str = "127.0.0.1",
    http: int = 8000,
    grpc: int | None = None,
    max_body: int = 64 << 20,
    token: str | None = None,
    tls: tuple[Path, Path] | None = None,
    control: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    access_log: AccessLog | None = None,
    grace_s: float = 30.0,
) -> None:
    """Serves until SIGTERM, SIGINT or SIGHUP, on the main thread. `nohup` disables SIGHUP.

    The ports open at once and readiness answers 503 until the models are loaded. After the first
    signal, readiness answers 503 again, new requests are refused with 503, those that are queued
    are answered, and the function returns. A second signal ends the process at once.

    Args:
        server: The models; not started yet.
        host: Address to listen on. With another than this machine's own, set a token.
        http: Port for HTTP; 0 for one that is free, which the log tells.
        grpc: Port for gRPC. None: no gRPC.
        max_body: Largest body of a request in bytes; its JSON document may have 4 MiB. All open
            requests together may have 16 times as many.
        token: As for `app`.
        tls: Paths of the certificate chain and the private key, in PEM. None: without encryption.
        control: Allow clients to load and unload models.
        limits: Limits of HTTP connections.
        access_log: As for `app`. It needs a logging configuration that shows level INFO.
        grace_s: Time that open requests have after the first signal. Connections that are open
            then have a second more, for the last answers.

    Raises:
        ImportError: The extra "grpc" is not installed, and `grpc` is a port.
        OSError: An address cannot be listened on, or a file cannot be read.
        RuntimeError: It is called on another thread, where Python handles no signals.
        ValueError: An option is out of range, or the repository cannot be served.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "run must be called on the main thread, since it handles signals, got thread="
            f"{threading.current_thread().name!r}; write start_http in an event loop there, from "
            "dovetail_serve.http.run"
        )
    for name, value in (("http", http), ("grpc", grpc)):
        check_port(name, value or 0)
    if not 0 <= grace_s < float("inf"):
        raise ValueError(
            f"grace_s must be a number of seconds from 0, got grace_s={grace_s}; write grace_s=30"
        )
    shared: dict[str, Any] = {
        "host": host,
        "max_body": max_body,
        "token": token,
        "tls": tls,
        "control": control,
    }
    start_web = functools.partial(
        start_http, server, port=http, limits=limits, access_log=access_log, **shared
    )
    start_rpc = None
    if grpc is not None:
        from dovetail_serve.rpc.run import start_grpc

        start_rpc = functools.partial(start_grpc, server, port=grpc, **shared)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(server, start_web, start_rpc, grace_s))


async def start_http(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_body: int = 64 << 20,
    token: str | None = None,
    tls: tuple[Path, Path] | None = None,
    control: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    access_log: AccessLog | None = None,
) -> HttpServer:
    """Serves the models of `server` over HTTP, in the running event loop.

    Args:
        server: The models. It is started and stopped by the caller.
        host: Address to listen on.
        port: Port to listen on; 0 for one that is free.
        max_body: Largest body of a request in bytes; its JSON document may have 4 MiB. All open
            requests together may have 16 times as many.
        token: As for `app`.
        tls: Paths of the certificate chain and the private key, in PEM. None: without encryption.
        control: Allow clients to load and unload models.
        limits: Limits of connections.
        access_log: As for `app`.

    Returns:
        The server, which listens.

    Raises:
        OSError: The address cannot be listened on, or a file of `tls` cannot be read.
        ValueError: An option is out of range.
    """
    check_port("port", port)
    if tls is not None:
        check_tls(*tls)
    application = app(
        server, max_body=max_body, token=token, control=control, access_log=access_log
    )
    if token is None and not _is_local(host):
        _log.warning(
            "listening on %s lets other machines send requests, and without a token all of them; "
            "set one, or listen on 127.0.0.1",
            host,
        )
    return await listen(application, host=host, port=port, tls=tls, limits=limits)


async def _serve(
    server: Server,
    start_web: Callable[[], Awaitable[HttpServer]],
    start_rpc: Callable[[], Awaitable[Any]] | None,
    grace_s: float,
) -> None:
    """Opens the ports, loads the models, and stops in the opposite order after a signal."""
    stop = asyncio.Event()
    web = await start_web()
    _log.info("listening for HTTP on port %d", web.port)
    _handle_signals(web.drain, stop)
    rpc, tasks = None, []
    try:
        if start_rpc is not None:
            rpc = await start_rpc()
            _log.info("listening for gRPC on port %d", rpc.port)
        loading, stopping = map(asyncio.ensure_future, (server.start(), stop.wait()))
        tasks = [loading, stopping]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
        await stopping
    finally:
        for task in tasks:
            task.cancel()
        end = time.monotonic() + grace_s
        # Together: gRPC waits for its open calls, and the server answers them.
        stops = [server.stop(grace_s), *([rpc.stop(grace_s)] if rpc else [])]
        await asyncio.gather(*stops)
        await web.stop(max(end - time.monotonic(), 0.0))
        _log.info("stopped")


def _handle_signals(drain: Callable[[], None], stop: asyncio.Event) -> None:
    """Makes the first signal stop the server, and the second one the process."""

    def handle(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        _log.info("got %s; answering what is queued", signal.Signals(number).name)
        drain()
        stop.set()

    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as nohup makes it
    for number in _STOPS if ignored else (*_STOPS, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, handle, number)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns uvloop, which takes half of asyncio's time; it does not exist for Windows."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
