# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A server on a free port of this machine, and unmodified clients of OpenAI's API."""

import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import openai
import uvicorn

from dovetail_infer import Engine
from dovetail_infer.server.application import Application

KEY = "sk-of-this-test"


def chat_ids(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    variables: Mapping[str, Any] = {},
) -> list[int]:
    """A chat template: each role's first letter and the content between two marks."""
    if messages[0]["role"] == "tool":
        raise ValueError("a conversation must not begin with a tool")
    text = "".join(f"<{m['role'][0]}>{m['content']}</>" for m in messages)
    return [256, *f"{text}<a>".encode()]


class Running:
    """A server in a thread.

    Attributes:
        url: Its address.
        engine: Its engine.
        application: Its application.
    """

    def __init__(self, engine: Engine, application: Application) -> None:
        self.engine, self.application = engine, application
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        options = {"http": "httptools", "lifespan": "off", "log_config": None}
        config = uvicorn.Config(application, timeout_graceful_shutdown=5, **options)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.engine.close()
        self._socket.close()

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
