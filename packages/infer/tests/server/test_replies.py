# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Headers, statuses and names of objects, which programs read."""

from typing import Any

import httpx
import pytest
from clients import KEY, Running

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


def chat(server: Running, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}"} | (headers or {})
    url, body = f"{server.url}/v1/chat/completions", {**CHAT, "max_tokens": 2, **more}
    return httpx.post(url, json=body, headers=headers, timeout=60)


def test_objects_have_the_names_of_openai(server):
    whole = chat(server)
    assert whole.headers["content-type"] == "application/json"
    values = whole.json()
    assert values["object"] == "chat.completion"
    assert values["id"].startswith("chatcmpl-")
    assert values["model"] == "tiny"
    assert values["choices"][0]["index"] == 0
    stream = chat(server, stream=True)
    assert stream.headers["cache-control"] == "no-cache"
    assert '"object":"chat.completion.chunk"' in stream.text
    assert stream.text.count('"role":"assistant"') == 1


def test_a_key_is_asked_for_by_its_scheme(server):
    assert chat(server, {"Authorization": f"bearer {KEY}"}).status_code == 200
    for wrong in (f"Basic {KEY}", KEY, f"Bearer {KEY[:-1]}", f"Bearer {KEY}, {KEY}", "Bearer é"):
        refused = chat(server, {"Authorization": wrong.encode("latin-1")})
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("given", ["a" * 129, "ä", ""])
def test_an_id_that_is_no_header_is_replaced(server, given):
    response = chat(server, {"X-Request-Id": given.encode("latin-1")}, max_tokens=0)
    assert response.status_code == 400
    assert response.headers["x-request-id"].isalnum()
    assert len(response.headers["x-request-id"]) == 32


def test_a_coded_body_is_refused(server):
    refused = chat(server, {"Content-Encoding": "gzip"})
    assert refused.status_code == 415
    assert "Content-Encoding" in refused.json()["error"]["message"]


def test_an_absent_method_names_the_present_ones(server):
    refused = httpx.delete(f"{server.url}/v1/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
