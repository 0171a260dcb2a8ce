# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`app`: a server as an ASGI application, to run under any ASGI server or inside of another one."""

from dovetail_serve.http.access import AccessLog
from dovetail_serve.http.application import Application
from dovetail_serve.serving.server import Server


def app(
    server: Server,
    *,
    max_body: int = 64 << 20,
    token: str | None = None,
    control: bool = False,
    access_log: AccessLog | None = None,
) -> Application:
    """Returns an ASGI application for the Open Inference Protocol.

    Run alone, it starts and stops the server in its lifespan. Mounted in another application, it
    gets no lifespan: enter `async with server` in that of the outer application.

    Limits on headers, connections and time are those of the ASGI server. `run` sets them.

    Args:
        server: Runs the models. Not started yet if the application runs alone.
        max_body: Largest body of a request in bytes, as sent and decompressed. All open requests
            together may have 16 times as many. The JSON document in a body may have 4 MiB; the rest
            is binary data. Arrays of texts need up to 12 times the bytes of their JSON.
        token: Requests need `Authorization: Bearer TOKEN`, except for the server's health and the
            status page without its figures. None: no token.
        control: Allow clients to load and unload models.
        access_log: Log each response to "dovetail_serve.access" at level INFO, as `key=value`
            ("text") or as an object ("json"). None: no log.

    Returns:
        The application. Set its `draining` before a shutdown, and readiness answers 503.

    Raises:
        ValueError: An option is out of range.

    Example:

        >>> from dovetail_serve import Server
        >>> application = app(Server("repo"), max_body=1 << 20)  # uvicorn module:application
    """
    if max_body < 1:
        raise ValueError(
            f"max_body must be a number of bytes from 1, got max_body={max_body}; write "
            f"max_body={64 << 20}"
        )
    check_token(token)
    return Application(
        server, max_body=max_body, token=token, control=control, access_log=access_log
    )


def check_token(token: str | None) -> None:
    """Raises ValueError for a token unfit for a header."""
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError(
            "token must be printable ASCII without spaces, got other characters; write one from "
            "secrets.token_urlsafe()"
        )
    if token == "":
        raise ValueError(
            'token must have characters, got token=""; write one from secrets.token_urlsafe(), or '
            "None for no token"
        )
