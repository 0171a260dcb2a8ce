# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Completions and chats through the unmodified `openai` client, against the engine itself."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpx
import openai
import pytest
from clients import KEY, Running, chat_ids

from dovetail_infer import QueueFull, Sampling, fold_seed

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
HELLO = [{"role": "user", "content": "Hello"}]


def post(server: Running, path: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)


def text_of(chunks: Iterable[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.text for choice in choices)


@pytest.mark.capability("completions over HTTP")
@pytest.mark.parameter("request.model", "request.prompt", "request.max_tokens")
def test_a_completion_is_the_engines(server, client):
    answer = client.completions.create(prompt="Hello", **GREEDY)
    (own,) = server.engine.generate(["Hello"], Sampling(max_tokens=8, temperature=0))
    assert answer.choices[0].text == own.text
    assert answer.choices[0].finish_reason == own.finish_reason
    assert answer.object == "text_completion"
    assert answer.usage.prompt_tokens == own.prompt_tokens == 6  # with bos
    assert answer.usage.completion_tokens == len(own.tokens)
    assert answer.usage.total_tokens == 6 + len(own.tokens)


def test_prompts_are_texts_or_ids_alone_or_several(client):
    ids = [256, *b"Hello"]
    text = client.completions.create(prompt="Hello", **GREEDY).choices[0].text
    assert client.completions.create(prompt=ids, **GREEDY).choices[0].text == text
    several = client.completions.create(prompt=["Hello", "Goodbye"], **GREEDY)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == text
    assert several.usage.prompt_tokens == 6 + 8
    lists = client.completions.create(prompt=[ids, [256, *b"Goodbye"]], **GREEDY)
    assert [c.text for c in lists.choices] == [c.text for c in several.choices]


@pytest.mark.parameter("request.n", "request.seed", "request.ignore_eos")
def test_choices_have_the_seeds_of_sample(server, client):
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 6}
    answer = client.completions.create(
        model="tiny", prompt=["ab", "cd"], n=3, seed=11, extra_body={"ignore_eos": True}, **options
    )
    sampling = Sampling(ignore_eos=True, **options)
    own = [
        server.engine.generate(
            [prompt],
            dataclasses.replace(sampling, seed=fold_seed(11, prompt=i, completion=j)),
        )[0].text
        for i, prompt in enumerate(["ab", "cd"])
        for j in range(3)
    ]
    assert [choice.text for choice in answer.choices] == own
    assert len(set(own)) == 6


@pytest.mark.capability("streams over HTTP")
@pytest.mark.parameter(
    "request.stream", "request.stream_options", "request.stream_options.include_usage"
)
def test_a_stream_is_the_whole_answer(client):
    whole = client.completions.create(prompt=["Hello", "ab"], n=2, seed=3, **GREEDY)
    chunks = list(
        client.completions.create(
            prompt=["Hello", "ab"],
            n=2,
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    for choice in whole.choices:
        assert text_of(chunks, choice.index) == choice.text
        reasons = [
            c.finish_reason for chunk in chunks for c in chunk.choices if c.index == choice.index
        ]
        assert reasons[-1] == choice.finish_reason
        assert set(reasons[:-1]) <= {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.capability("chats over HTTP")
@pytest.mark.parameter("request.messages", "request.max_completion_tokens")
def test_a_chat_has_the_ids_of_its_template(server, client):
    options = {"model": "tiny", "temperature": 0, "max_completion_tokens": 8}
    answer = client.chat.completions.create(messages=HELLO, **options)
    (own,) = server.engine.generate([chat_ids(HELLO)], Sampling(max_tokens=8, temperature=0))
    assert answer.choices[0].message.content == own.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == len(chat_ids(HELLO))
    stream = client.chat.completions.create(messages=HELLO, stream=True, **GREEDY)
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == own.text


def test_contents_may_be_lists_of_text_parts(client):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    whole = client.chat.completions.create(messages=HELLO, **GREEDY)
    listed = client.chat.completions.create(messages=[{**HELLO[0], "content": parts}], **GREEDY)
    assert listed.choices[0].message.content == whole.choices[0].message.content


def test_a_chat_without_max_tokens_uses_the_room(server, client):
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.total_tokens == server.engine.max_length
    assert answer.choices[0].finish_reason == "length"


def test_cached_tokens_of_a_prompt_count_once(client):
    ids = [256, *b"a prompt of five pages"]
    for _ in range(2):
        answer = client.completions.create(prompt=ids, n=2, **GREEDY)
    assert 0 < answer.usage.prompt_tokens_details.cached_tokens <= len(ids)


@pytest.mark.parameter("request.cache_salt")
def test_a_salt_shares_cached_tokens_with_its_own_requests(client):
    ids = [256, *b"another prompt of some pages"]

    def cached(salt: str) -> int:
        options = {**GREEDY, "extra_body": {"cache_salt": salt}}
        answer = client.completions.create(prompt=ids, **options)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached(salt) > 0 for salt in ("a", "b", "a")] == [False, False, True]


@pytest.mark.parameter(
    "request.temperature",
    "request.top_p",
    "request.top_k",
    "request.min_p",
    "request.frequency_penalty",
    "request.presence_penalty",
    "request.repetition_penalty",
    "request.min_tokens",
    "request.seed",
    "request.stop",
    "request.stop_token_ids",
    "request.logit_bias",
)
def test_options_reach_the_engine(server, client):
    body = {
        "top_k": 5,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "min_tokens": 3,
        "stop_token_ids": [101],
    }
    answer = client.completions.create(
        model="tiny",
        prompt="Hello",
        max_tokens=9,
        temperature=1.3,
        top_p=0.9,
        frequency_penalty=0.3,
        presence_penalty=-0.2,
        logit_bias={"104": 3, "105": -100},
        seed=5,
        stop=["zz", "\n"],
        extra_body=body,
    )
    sampling = Sampling(
        max_tokens=9,
        temperature=1.3,
        top_p=0.9,
        frequency_penalty=0.3,
        presence_penalty=-0.2,
        logit_bias={104: 3, 105: -100},
        seed=5,
        stop=["zz", "\n"],
        **body,
    )
    (own,) = server.engine.generate(["Hello"], sampling)
    assert answer.choices[0].text == own.text


@pytest.mark.thorough("a server of its own")
def test_defaults_are_for_fields_that_are_absent(start):
    server = start(defaults=Sampling(temperature=0, ignore_eos=True))
    answer = server.client().completions.create(model="tiny", prompt="Hello", max_tokens=8)
    sampling = Sampling(max_tokens=8, temperature=0, ignore_eos=True)
    assert answer.choices[0].text == server.engine.generate(["Hello"], sampling)[0].text


def test_models_tokens_and_texts(server, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        client.models.retrieve("other/model")
    tokens = post(server, "/tokenize", prompt="Hé").json()
    assert tokens == {"count": 4, "max_model_len": 64, "tokens": [256, 72, 195, 169]}
    messages = post(server, "/tokenize", messages=HELLO).json()
    assert messages["tokens"] == chat_ids(HELLO)
    assert post(server, "/detokenize", tokens=[72, 195, 169]).json() == {"prompt": "Hé"}
    assert "tokens[1]" in post(server, "/detokenize", tokens=[72, 999]).json()["error"]["message"]


def test_the_asynchronous_client(server):
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
            whole = await client.completions.create(prompt="Hello", **GREEDY)
            stream = await client.completions.create(prompt="Hello", stream=True, **GREEDY)
            return whole.choices[0].text, "".join([c.choices[0].text async for c in stream])

    whole, streamed = asyncio.run(ask())
    assert whole == streamed != ""


@pytest.mark.capability("keys of the server")
def test_keys_are_asked_for_but_by_probes(server):
    with pytest.raises(openai.AuthenticationError) as caught:
        server.client("sk-wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    assert httpx.get(f"{server.url}/health").json() == {"status": "alive"}
    assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}


@pytest.mark.capability("metrics of the server")
def test_metrics_are_the_engines_counters(server, client):
    client.completions.create(prompt="Hello", stream=True, **GREEDY).response.read()
    headers = {"Authorization": f"Bearer {KEY}"}
    text = httpx.get(f"{server.url}/metrics", headers=headers).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    stats = server.engine.stats()
    assert float(values["dovetail_infer_drawn_tokens_total"]) == stats.drawn_tokens > 0
    assert float(values["dovetail_infer_time_to_first_token_seconds_count"]) > 0
    route = '{route="/v1/completions",status="200"}'
    assert float(values[f"dovetail_infer_http_responses_total{route}"]) > 0


def test_a_request_id_is_kept(server):
    url = f"{server.url}/health"
    assert httpx.get(url, headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    ids = {httpx.get(url).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.capability("a client that goes away aborts")
def test_a_client_that_goes_away_aborts_its_requests(server):
    body = {"prompt": "Hello", "max_tokens": 50, "ignore_eos": True, "model": "tiny", "n": 2}
    headers = {"Authorization": f"Bearer {KEY}"}
    aborted = server.engine.stats().finished.get("abort", 0)
    server.engine.pause()
    try:
        for stream in (True, False):
            with (
                pytest.raises(httpx.TimeoutException),
                httpx.stream(
                    "POST",
                    f"{server.url}/v1/completions",
                    json={**body, "stream": stream},
                    headers=headers,
                    timeout=0.5,
                ) as response,
            ):
                response.read()
    finally:
        server.engine.resume()
    end = time.monotonic() + 30
    while server.engine.stats().finished.get("abort", 0) < aborted + 4:
        assert time.monotonic() < end, server.engine.stats()
        time.sleep(0.01)
    assert server.engine.stats().running == 0


@pytest.mark.capability("overload is 429")
def test_a_full_queue_is_429_and_all_or_nothing(start):
    server = start(max_queue=2)
    server.engine.pause()
    streams = [server.engine.stream("a"), server.engine.stream("b")]
    with streams[0]:
        with pytest.raises(openai.RateLimitError) as caught:
            server.client().completions.create(prompt="Hello", n=2, **GREEDY)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "rate_limit_exceeded"
        end = time.monotonic() + 30
        while True:  # the choice that had a place was aborted
            try:
                with streams[1]:
                    break
            except QueueFull:
                assert time.monotonic() < end
                streams[1] = server.engine.stream("b")
                time.sleep(0.01)
    server.engine.resume()


@pytest.mark.thorough("a server of its own")
def test_a_draining_server_takes_no_new_request(start):
    server = start()
    client = server.client()
    server.engine.pause()
    stream = client.completions.create(prompt="Hello", stream=True, **GREEDY)
    server.application.draining = True
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(prompt="Hello", **GREEDY)
    assert caught.value.status_code == 503
    assert httpx.get(f"{server.url}/ready").status_code == 503
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.engine.resume()
    assert text_of(stream) != ""


def test_a_closed_engine_is_503_and_ends_streams_with_an_error(start):
    server = start()
    server.engine.pause()
    stream = server.client().completions.create(prompt="Hello", stream=True, **GREEDY)
    threading.Thread(target=server.engine.close).start()
    with pytest.raises(openai.APIError, match="must be running"):
        list(stream)
    with pytest.raises(openai.InternalServerError) as caught:
        server.client().completions.create(prompt="Hello", **GREEDY)
    assert caught.value.status_code == 503


def test_events_are_lines_of_json(server):
    body = {"prompt": "Hello", "stream": True, **GREEDY}
    response = post(server, "/v1/completions", **body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        assert json.loads(event.removeprefix("data: "))["object"] == "text_completion"


def test_routes_that_are_absent_are_named(server):
    headers = {"Authorization": f"Bearer {KEY}"}
    absent = httpx.post(f"{server.url}/v1/nothing", headers=headers)
    assert absent.status_code == 404
    assert "/v1/completions" in absent.json()["error"]["message"]
    method = httpx.get(f"{server.url}/v1/completions", headers=headers)
    assert method.status_code == 405
    assert "POST" in method.json()["error"]["message"]
