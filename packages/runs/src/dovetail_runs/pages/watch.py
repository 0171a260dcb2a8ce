# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A live page of runs on 127.0.0.1, from their files: `Watch`."""

import json
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dovetail_runs.pages.content import content
from dovetail_runs.pages.page import document, library
from dovetail_runs.run import Run

_HOSTS = ("127.0.0.1", "localhost")  # a page of elsewhere must not read it under another name


class Watch:
    """A server of a page that follows its runs. It listens on 127.0.0.1 alone.

    Args:
        runs: Returns the runs by the name to show; called for each reading, so new ones appear.
        title: Heading of the page.
        port: The port; 0: a free one.
        every_s: Seconds between readings.

    Raises:
        ImportError: Plotly is missing.
        OSError: The port is taken.
    """

    def __init__(
        self,
        runs: Callable[[], Mapping[str, Run]],
        *,
        title: str = "Training runs",
        port: int = 0,
        every_s: float = 5.0,
    ) -> None:
        self._runs, self._title, self._every_s = runs, title, every_s
        self._script = library().encode()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.server_close()

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def serve(self) -> None:
        """Serves until `stop`, or an interruption."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Ends `serve`, from another thread."""
        self._server.shutdown()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Returns the type and the body of a file of the page; None for another path."""
        if path == "/plotly.js":
            return "text/javascript", self._script
        if path == "/content.json":
            return "application/json", json.dumps(content(self._runs())).encode()
        if path == "/":
            shown = document(
                content(self._runs()), title=self._title, script="", every_s=self._every_s
            )
            return "text/html; charset=utf-8", shown.encode()
        return None


def _handler(watch: Watch) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in _HOSTS:
                self._send(403, "text/plain", b"only 127.0.0.1 is served\n")
                return
            try:
                answer = watch.answer(self.path.partition("?")[0])
            except (ValueError, OSError) as error:  # a run that is damaged, or is being moved
                self._send(500, "text/plain; charset=utf-8", f"{error}\n".encode())
                return
            self._send(*((200, *answer) if answer else (404, "text/plain", b"no such page\n")))

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if self.path == "/plotly.js":
                self.send_header("Cache-Control", "max-age=86400")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Stays silent: a request every few seconds is no news."""

    return Handler
