# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run`: a server until a signal ends it."""

from __future__ import annotations

import logging
import socket
from types import FrameType

import uvicorn

from dovetail_infer.server.application import Application

_log = logging.getLogger("dovetail_infer.server")


def run(
    application: Application, *, host: str = "127.0.0.1", port: int = 8000, grace_s: int = 30
) -> None:
    """Serves until SIGTERM or SIGINT, on the main thread.

    After the first signal, new requests get 503 and open ones are answered; a second signal ends
    the process at once.

    Args:
        application: The result of `app`.
        host: Address to listen on. With another than this machine's own, use `api_keys`.
        port: Port to listen on; 0 for a free one, named by the log.
        grace_s: Seconds for open requests after the first signal.

    Raises:
        OSError: The address cannot be listened on.
        ValueError: An option is out of range.
    """
    if not 0 <= port < 2**16:
        raise ValueError(f"port must be from 0 to 65535, got port={port}. Use port=8000.")
    if grace_s < 0:
        raise ValueError(f"grace_s must be seconds from 0, got grace_s={grace_s}. Use grace_s=30.")
    config = uvicorn.Config(
        application,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_s,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listening:
        shown = f"[{host}]" if ":" in host else host
        _log.info("serving at http://%s:%d", shown, listening.getsockname()[1])
        _Server(config, application).run([listening])


class _Server(uvicorn.Server):
    """Tells the application about the first signal."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self._application = application

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._application.draining = True
        super().handle_exit(sig, frame)
