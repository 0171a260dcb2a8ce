# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Servers of small engines."""

from collections.abc import Callable, Iterator
from typing import Any

import engines
import httpx
import openai
import pytest
from clients import KEY, Running, chat_ids

from dovetail_infer.server import KeyLimits, app
from dovetail_infer.testing import ByteTokenizer


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., Running]]:
    """Starts servers of small engines."""
    servers: list[Running] = []

    def make(**options: Any) -> Running:
        names = ("api_keys", "max_body", "defaults", "limits", "access_log", "lenient")
        of_app = {name: options.pop(name) for name in names if name in options}
        engine = engines.text_engine(**options)
        application = app(
            engine,
            name="tiny",
            tokenizer=ByteTokenizer(),
            chat=chat_ids,
            **{"api_keys": ["sk-another", KEY], **of_app},
        )
        servers.append(Running(engine, application))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def server(start: Callable[..., Running]) -> Running:
    return start()


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="session")
def entries() -> list[dict[str, Any]]:
    """The access log of `narrow`."""
    return []


@pytest.fixture(scope="session")
def narrow(start: Callable[..., Running], entries: list[dict[str, Any]]) -> Running:
    """A server with a queue of 2 and one request of each key at a time, which has run."""
    server = start(limits=KeyLimits(requests=1), access_log=entries.append, max_queue=2)
    url, body = f"{server.url}/v1/completions", {"model": "tiny", "prompt": "Hello"}
    for stream in (True, False):
        headers = {"Authorization": f"Bearer {KEY}"}
        httpx.post(url, json={**body, "stream": stream}, headers=headers, timeout=60)
    return server
