# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run`: a server until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn

from dovetail_infer.server.application import Application

_log = logging.getLogger("dovetail_infer.server")


def run(
    application: Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tls: tuple[str, str] | None = None,
    grace_s: int = 30,
    protocol: type[asyncio.Protocol] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, on the main thread.

    After the first signal, new requests get 503 and open ones are answered, then the port closes. A
    second signal ends the process at once.

    Args:
        application: The result of `app`.
        host: Address to listen on. With another than this machine's own, use `api_keys`.
        port: Port to listen on; 0 for a free one, named by the log.
        tls: Paths of the certificate chain and the private key, in PEM. None: without encryption.
        grace_s: Seconds for open requests after the first signal.
        protocol: uvicorn's class for connections, such as one with limits of their number, sizes
            and times. None: uvicorn's own, which has none and belongs behind a proxy.

    Raises:
        OSError: The address cannot be listened on.
        ValueError: An option is out of range.
    """
    if not 0 <= port < 2**16:
        raise ValueError(f"port must be from 0 to 65535, got port={port}. Use port=8000.")
    if grace_s < 0:
        raise ValueError(f"grace_s must be seconds from 0, got grace_s={grace_s}. Use grace_s=30.")
    chain, key = tls or (None, None)
    config = uvicorn.Config(
        application,
        http=protocol or "httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=60,  # as connections of dovetail-serve
        ssl_certfile=chain,
        ssl_keyfile=key,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listening:
        scheme, shown = f"http{'s' if tls else ''}", f"[{host}]" if ":" in host else host
        url = f"{scheme}://{shown}:{listening.getsockname()[1]}"
        _Server(config, application, url, grace_s).run([listening])
    _log.info("stopped")


class _Server(uvicorn.Server):
    """Drains the application at the first signal, and ends when no request is open."""

    def __init__(
        self, config: uvicorn.Config, application: Application, url: str, grace_s: int
    ) -> None:
        super().__init__(config)
        self._application, self._url, self._grace_s = application, url, grace_s
        self._end: float | None = None  # of the grace, after a signal

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("serving at %s", self._url)

    def _stop(self, number: int) -> None:
        if self._end is not None:
            os._exit(128 + number)
        _log.info("got %s; answering open requests", signal.Signals(number).name)
        self._application.draining = True
        self._end = time.monotonic() + self._grace_s

    async def on_tick(self, counter: int) -> bool:
        # The port is open until then: those who ask get 503, and no refused connection.
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0 or not self._application.running:
                # A second at least, for answers on their way.
                self.config.timeout_graceful_shutdown = max(1, int(left))
                self.should_exit = True
        return await super().on_tick(counter)
