# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong bodies: each gets status, message, param and code, and the engine nothing."""

import json
import random
from typing import Any

import httpx
import pytest
from clients import KEY, Running

from dovetail_infer.server.bodies import requests

COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 2}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


def post(server: Running, path: str, content: bytes | None = None, **rest: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60, **rest)


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 1e39}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 129}, "n"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100}, "prompt"),
        ({"prompt": "a" * 80}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [[1], [True]]}, "prompt[1]"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt[0]"),
        ({"prompt": ["a"] * 257}, "prompt"),  # more choices than the queue has places
        ({"prompt": ["a"] * 3, "n": 128, "seed": 1}, "n"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [999]}, "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, f"logit_bias.{'9' * 189}"),
        ({"logit_bias": []}, "logit_bias"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"stream": True, "echo": True, "logprobs": 1}, "stream"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"skip_special_tokens": 0}, "skip_special_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"user": 3}, "user"),
        ({"temprature": 1}, "temprature"),
        ({"x" * 10**6: 1}, "x" * 200),
        ({"messages": []}, "messages"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(server, change, param):
    before = server.engine.stats().prompt_tokens
    response = post(server, "/v1/completions", json={**COMPLETION, **change})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert error_of(response)["type"] == "invalid_request_error"
    assert server.engine.stats().prompt_tokens == before


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "a"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "pilot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[0].x"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 80}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": 1}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"echo": True}, "echo"),
    ],
)
def test_a_wrong_field_of_a_chat_is_named(server, change, param):
    response = post(server, "/v1/chat/completions", json={**CHAT, **change})
    assert response.status_code == 400, response.text
    if param is not None:
        assert error_of(response)["param"] == param


@pytest.mark.parameter(
    "request.model",
    "request.prompt",
    "request.max_tokens",
    "request.n",
    "request.stop",
    "request.stop_token_ids",
    "request.seed",
    "request.temperature",
    "request.top_p",
    "request.top_k",
    "request.min_p",
    "request.frequency_penalty",
    "request.presence_penalty",
    "request.repetition_penalty",
    "request.min_tokens",
    "request.ignore_eos",
    "request.skip_special_tokens",
    "request.cache_salt",
    "request.logit_bias",
    "request.logprobs",
    "request.echo",
    "request.stream",
    "request.stream_options",
    "request.stream_options.include_usage",
    "request.stream_options.include_obfuscation",
    "request.user",
    "request.safety_identifier",
    "request.prompt_cache_key",
    "request.prompt_cache_retention",
    "request.service_tier",
    "request.suffix",
    "request.best_of",
    refuses=True,
)
def test_another_type_is_refused_in_each_field_of_a_completion(server, request):
    _refuses_each(server, request, "/v1/completions", COMPLETION)


@pytest.mark.parameter(
    "request.messages",
    "request.max_completion_tokens",
    "request.logprobs",
    "request.top_logprobs",
    "request.tools",
    "request.tool_choice",
    "request.parallel_tool_calls",
    "request.chat_template_kwargs",
    "request.reasoning_effort",
    "request.response_format",
    "request.functions",
    "request.function_call",
    "request.modalities",
    "request.audio",
    "request.prediction",
    "request.web_search_options",
    "request.verbosity",
    "request.store",
    "request.metadata",
    refuses=True,
)
def test_another_type_is_refused_in_each_field_of_a_chat(server, request):
    _refuses_each(server, request, "/v1/chat/completions", CHAT)


def _refuses_each(server: Running, request: pytest.FixtureRequest, path: str, body: Any) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, base_url=server.url) as client:
        for marked in request.node.get_closest_marker("parameter").args:
            name = marked.removeprefix("request.")
            outer, _, inner = name.partition(".")
            wrong = [] if requests.OPTIONS.get(outer) == "a number" else 7.5
            change = {"stream": bool(inner), outer: {inner: wrong} if inner else wrong}
            response = client.post(path, json={**body, **change})
            assert response.status_code == 400, name
            assert error_of(response)["param"] == name


@pytest.mark.parameter(
    "request.tool_choice",
    "request.parallel_tool_calls",
    "request.response_format",
    "request.functions",
    "request.function_call",
    "request.modalities",
    "request.audio",
    "request.prediction",
    "request.web_search_options",
    "request.verbosity",
    "request.store",
    "request.metadata",
    "request.service_tier",
    "request.user",
    "request.safety_identifier",
    "request.prompt_cache_key",
    "request.prompt_cache_retention",
    "request.suffix",
    "request.best_of",
    "request.stream_options.include_obfuscation",
)
def test_fields_that_ask_for_what_happens_anyway_are_taken(server):
    both = {
        "service_tier": "auto",
        "user": "a",
        "safety_identifier": "a",
        "prompt_cache_key": "a",
        "prompt_cache_retention": "24h",
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "n": None,
        "stop": None,
    }
    chat = {
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "functions": [],
        "function_call": "none",
        "modalities": ["text"],
        "audio": None,
        "prediction": None,
        "web_search_options": None,
        "verbosity": "medium",
        "store": False,
        "metadata": {},
        "max_tokens": 2,
    }
    assert post(server, "/v1/chat/completions", json={**CHAT, **both, **chat}).status_code == 200
    own = {"suffix": "", "best_of": 1, "top_k": -1}
    assert post(server, "/v1/completions", json={**COMPLETION, **both, **own}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions/", "//absent"])
def test_another_path_is_not_found(server, path):
    response = httpx.get(f"{server.url}{path}", headers={"Host": "["})
    assert response.status_code == 404
    assert "/v1/completions" in error_of(response)["message"]


def test_another_model_is_not_found(server):
    response = post(server, "/v1/completions", json={**COMPLETION, "model": "gpt-5"})
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


def test_a_prompt_over_the_limit_says_so(server):
    response = post(server, "/v1/completions", json={**COMPLETION, "prompt": "a" * 64})
    assert error_of(response)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b"\xff\xfe",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "a", "max_tokens": 1e400}',
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"model": "tiny", "prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_that_is_no_request_is_refused(server, body):
    response = post(server, "/v1/completions", body)
    assert response.status_code == 400, response.text
    error_of(response)


def test_a_large_body_is_refused_before_it_is_read(start):
    server = start(max_body=1000)
    response = post(server, "/v1/completions", b"x" * 2000)
    assert response.status_code == 413

    def chunks():
        yield from [b"x" * 600] * 2

    response = httpx.post(
        f"{server.url}/v1/completions",
        content=chunks(),
        headers={"Authorization": f"Bearer {KEY}"},
    )
    assert response.status_code == 413


@pytest.mark.thorough("150 requests")
def test_random_values_of_all_fields_are_answered(server):
    """A seeded sample: no answer of the server's own failure, each error with its form."""
    rng = random.Random(0)
    values = [None, True, 0, -1, 1.5, 10**18, "", "a", "\u2028", [], ["a"], [[]], {}, {"a": 1}]
    names = [*COMPLETION, "n", "stop", "seed", "logprobs", "echo", "stream", "top_p", "top_k"]
    names += ["logit_bias", "min_tokens", "stream_options", "ignore_eos", "stop_token_ids"]
    with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for _ in range(150):
            change = {rng.choice(names): rng.choice(values) for _ in range(rng.randint(1, 3))}
            body = {**COMPLETION, **change}
            response = client.post(f"{server.url}/v1/completions", json=body)
            assert response.status_code in (200, 400, 404), (body, response.text)
            if response.status_code != 200:
                error_of(response)
    assert server.engine.stats().failed_steps == 0


def test_a_message_may_say_that_it_is_text(server):
    for kind, status in {"text": 200, "image": 400}.items():  # lm-eval 0.4.9 writes the first
        messages = [{**CHAT["messages"][0], "type": kind}]
        response = post(
            server, "/v1/chat/completions", json.dumps({**CHAT, "messages": messages}).encode()
        )
        assert response.status_code == status
    assert error_of(response)["param"] == "messages[0].type"


@pytest.mark.thorough("a server of its own")
def test_unknown_fields_are_ignored_where_the_server_is_lenient(start):
    server = start(lenient=True)
    stream = {"stream": True, "stream_options": {"padding": 1}}
    other = {"temprature": 1, 'ü"': 2, **stream}
    response = post(server, "/v1/completions", json={**COMPLETION, **other})
    assert response.status_code == 200
    names = "stream_options.padding, temprature, ??"
    assert response.headers["warning"] == f'199 - "unknown fields are ignored: {names}"'
    assert "warning" not in post(server, "/v1/completions", json=COMPLETION).headers
    refused = post(server, "/v1/completions", json={**COMPLETION, "best_of": 2, "x": 1})
    assert error_of(refused)["param"] == "best_of"
