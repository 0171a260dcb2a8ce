# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters by the name of a model, through the unmodified `openai` client."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import engines
import httpx
import numpy as np
import openai
import pytest
from clients import Running, chat_ids
from stacked import StackedDecoder, adapter, merged

from dovetail_infer.server import Adapter, app
from dovetail_infer.server.models import Models, check_name
from dovetail_infer.testing import ByteTokenizer, TinyDecoder

IDS = [256, *b"Hello"]
GREEDY: dict[str, Any] = {"prompt": IDS, "temperature": 0, "max_tokens": 8}
NAMES = ["poet", "team/clerk-2", "ft:tiny::a.b_c"]


@dataclasses.dataclass
class Serving:
    """A server with three adapters of four places.

    Attributes:
        running: The server.
        gate: While it is closed, the engine takes no step.
        steps: Steps until the gate closes by itself; -1 for never.
    """

    running: Running
    gate: threading.Event
    steps: int = -1

    def event(self, event: dict[str, Any]) -> None:
        """Holds the engine's thread while the gate is closed."""
        if event["event"] == "step":
            self.steps -= 1
            if self.steps == 0:
                self.gate.clear()
        self.gate.wait(60)

    def client(self) -> openai.OpenAI:
        return self.running.client().with_options(timeout=60)

    def post(self, route: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.running.url}/v1/{route}", json=body, timeout=60)

    def load(self, name: Any, path: Any, **more: Any) -> httpx.Response:
        return self.post("load_lora_adapter", lora_name=name, lora_path=path, **more)

    def unload(self, name: Any, **more: Any) -> httpx.Response:
        return self.post("unload_lora_adapter", lora_name=name, **more)

    def names(self) -> list[str]:
        return [model.id for model in self.client().models.list()]


@pytest.fixture(scope="module")
def shared() -> Iterator[Serving]:
    """One program. Each test leaves the three adapters, and no other."""
    gate, made = threading.Event(), []
    gate.set()
    engine = engines.text_engine(
        StackedDecoder(4, engines.byte_decoder()),
        adapters=4,
        invariant=True,
        max_rows=8,
        events=lambda event: made and made[0].event(event),
    )
    engine.unload_adapter(3)

    def load(path: str) -> int:
        if not path.isdecimal():
            raise ValueError(f"it must be a number, got {path!r}: write 7")
        return engine.load_adapter(adapter(int(path)))

    application = app(
        engine,
        name="tiny",
        tokenizer=ByteTokenizer(),
        chat=chat_ids,
        adapters={name: Adapter(i, f"runs/{i}") for i, name in enumerate(NAMES)},
        load_adapter=load,
    )
    made.append(Serving(Running(engine, application), gate))
    yield made[0]
    made[0].running.close()


@pytest.fixture
def serving(shared: Serving) -> Iterator[Serving]:
    yield shared
    shared.gate.set()  # also after a test that failed, or the others would wait
    shared.running.engine.resume()


def model_of(seed: int | None) -> TinyDecoder:
    base = engines.byte_decoder()
    return base if seed is None else merged(adapter(seed), base)


def text_of(seed: int | None) -> str:
    """The greedy answer by merged weights."""
    ids = engines.greedy(model_of(seed), IDS, 8)
    ends = [i for i, token in enumerate(ids) if token == ByteTokenizer().eos_id]
    return ByteTokenizer().decode(ids[: ends[0] if ends else None])


@pytest.mark.thorough("programs of a decoder with adapters")
@pytest.mark.capability("adapters by the name of a model")
def test_adapters_in_one_batch_answer_as_merged_weights(serving):
    stats = serving.running.engine.stats
    client = serving.client()
    client.completions.create(model="tiny", logprobs=0, **GREEDY)
    before = stats()
    serving.gate.clear()  # the requests meet in one batch
    with ThreadPoolExecutor(4) as pool:
        names = ["tiny", *NAMES]
        asked = [
            pool.submit(client.completions.create, model=name, logprobs=0, **GREEDY)
            for name in names
        ]
        end = time.monotonic() + 30
        while stats().waiting + stats().running < 4:
            assert time.monotonic() < end
            time.sleep(0.01)
        serving.gate.set()
        answers = [each.result() for each in asked]
    assert stats().steps - before.steps < 4 * 8  # so many if each were alone
    assert [answer.model for answer in answers] == names
    texts = [answer.choices[0].text for answer in answers]
    assert texts == [text_of(seed) for seed in (None, 0, 1, 2)]
    assert len(set(texts)) == 4
    for seed, answer in zip((None, 0, 1, 2), answers, strict=True):
        ids = engines.greedy(model_of(seed), IDS, 8)
        own = engines.logprobs(model_of(seed), [*IDS, *ids])[len(IDS) - 1 : -1]
        given = answer.choices[0].logprobs.token_logprobs
        want = [row[token] for row, token in zip(own, ids, strict=True)][: len(given)]
        # Float32, with E + s (E A) B on one side and the rounded sum as a weight on the other.
        np.testing.assert_allclose(given, want, atol=1e-4)
    assert stats().compiled == before.compiled
    assert stats().late_compiles == before.late_compiles


@pytest.mark.thorough("programs of a decoder with adapters")
def test_chats_and_streams_have_the_adapter_too(serving):
    client = serving.client()
    messages = [{"role": "user", "content": "Hello"}]
    options: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 8}
    whole = client.chat.completions.create(model="poet", **options)
    assert whole.model == "poet"
    base = client.chat.completions.create(model="tiny", **options)
    assert whole.choices[0].message.content != base.choices[0].message.content
    chunks = list(client.chat.completions.create(model="poet", stream=True, **options))
    assert {chunk.model for chunk in chunks} == {"poet"}
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    for route, body in (("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [97]})):
        url = f"{serving.running.url}/{route}"
        assert httpx.post(url, json={"model": "poet", **body}).status_code == 200
        assert httpx.post(url, json={"model": "other", **body}).status_code == 404


def test_models_are_listed_with_their_parents(serving):
    client = serving.client()
    cards = {model.id: model for model in client.models.list()}
    assert list(cards) == ["tiny", *NAMES]
    assert (cards["tiny"].root, cards["tiny"].parent) == ("tiny", None)
    for i, name in enumerate(NAMES):
        assert (cards[name].root, cards[name].parent) == (f"runs/{i}", "tiny")
        assert client.models.retrieve(name) == cards[name]
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="novelist", **GREEDY)
    assert caught.value.code == "model_not_found"
    assert "'tiny' or 'poet' or 'team/clerk-2'" in caught.value.message


@pytest.mark.thorough("programs of a decoder with adapters")
@pytest.mark.capability("adapters loaded over HTTP")
def test_an_adapter_loads_and_unloads_over_http(serving):
    stats, client = serving.running.engine.stats, serving.client()
    client.completions.create(model="tiny", **GREEDY)
    before = stats()
    for seed in (7, 8):  # the second into the place of the first
        loaded = serving.load("new", str(seed))
        assert (loaded.status_code, loaded.headers["content-type"][:10]) == (200, "text/plain")
        assert loaded.text == "Success: LoRA adapter 'new' added successfully."
        assert client.models.retrieve("new").root == str(seed)
        answer = client.completions.create(model="new", **GREEDY)
        assert answer.choices[0].text == text_of(seed)
        full = serving.load("more", "9")
        assert full.status_code == 400
        assert full.json()["error"]["code"] == "no_free_place"
        assert "'poet'" in full.json()["error"]["message"]
        assert serving.unload("new").text == "Success: LoRA adapter 'new' removed successfully."
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="new", **GREEDY)
    assert stats().compiled == before.compiled
    assert serving.names() == ["tiny", *NAMES]


@pytest.mark.thorough("programs of a decoder with adapters")
def test_streams_go_on_bitwise_while_adapters_change(serving):
    engine, client = serving.running.engine, serving.client()
    options: dict[str, Any] = {"prompt": IDS, "temperature": 1, "max_tokens": 40, "stream": True}
    options |= {"logprobs": 0, "extra_body": {"ignore_eos": True}}

    def begin() -> list[Iterator[Any]]:
        names = ["tiny", *NAMES] * 2
        return [
            iter(client.completions.create(model=name, seed=i, **options))
            for i, name in enumerate(names)
        ]

    def rest(streams: list[Iterator[Any]]) -> list[list[Any]]:
        choices = [[chunk.choices[0] for chunk in stream] for stream in streams]
        return [[(c.text, c.logprobs and c.logprobs.token_logprobs) for c in x] for x in choices]

    alone = rest(begin())
    engine.pause()
    streams = begin()
    with ThreadPoolExecutor(1) as pool:
        serving.steps = 12
        engine.resume()
        while serving.gate.is_set():
            time.sleep(0.01)
        pausing = pool.submit(engine.pause)  # between two steps, in the midst of all streams
        while not engine._loop._commands:
            time.sleep(0.01)
        serving.gate.set()
        pausing.result()
    assert engine.stats().running == 8
    assert serving.load("new", "7").status_code == 200
    engine.resume()
    assert serving.unload("new").status_code == 200
    assert rest(streams) == alone
    assert len({str(x) for x in alone}) == 8


@pytest.mark.thorough("programs of a decoder with adapters")
def test_requests_of_an_unloaded_adapter_end_and_new_ones_are_not_found(serving):
    client = serving.client()
    assert serving.load("new", "7").status_code == 200
    stream = client.completions.create(model="new", stream=True, **GREEDY)
    serving.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(client.completions.create, model="new", **GREEDY)
        end = time.monotonic() + 30
        while serving.running.engine.stats().waiting == 0:
            assert time.monotonic() < end
            time.sleep(0.01)
        unloading = pool.submit(serving.unload, "new")
        while "new" in serving.names():
            assert time.monotonic() < end
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="new", **GREEDY)
        assert serving.unload("new").status_code == 404
        assert not unloading.done()
        serving.gate.set()
        assert held.result().choices[0].text == text_of(7)
        assert unloading.result().status_code == 200
    assert "".join(chunk.choices[0].text for chunk in stream) == text_of(7)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_path": "7"}, "lora_name"),
        ({"lora_name": "new"}, "lora_path"),
        ({"lora_name": "new", "lora_path": ""}, "lora_path"),
        ({"lora_name": "new", "lora_path": 7}, "lora_path"),
        ({"lora_name": "new", "lora_path": "seven"}, "lora_path"),
        ({"lora_name": "tiny", "lora_path": "7"}, "lora_name"),
        ({"lora_name": "poet", "lora_path": "7"}, "lora_name"),
        ({"lora_name": "new", "lora_path": "7", "load_inplace": True}, "load_inplace"),
        ({"lora_name": "new", "lora_path": "7", "rank": 3}, "rank"),
    ],
    ids=str,
)
def test_a_wrong_load_is_named(serving, body, param):
    response = serving.post("load_lora_adapter", **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert serving.names() == ["tiny", *NAMES]


def test_an_unknown_adapter_is_not_unloaded(serving):
    for name in ("novelist", "tiny"):
        response = serving.unload(name)
        assert response.status_code == 404
        assert "'poet' or" in response.json()["error"]["message"]
    assert serving.unload("poet", lora_int_id=3).json()["error"]["param"] == "lora_int_id"
    assert "poet" in serving.names()


def test_of_two_loads_of_one_name_at_a_time_one_is_refused(server):
    paths: list[str] = []
    may_end = threading.Event()

    def load(path: str) -> int:
        paths.append(path)
        assert may_end.wait(30)
        return 0

    async def both() -> list[Any]:
        models = Models(server.engine, "tiny", adapters={}, load=load)
        bodies = [{"lora_name": "new", "lora_path": path} for path in "ab"]
        tasks = [asyncio.create_task(models.load(body, load)) for body in bodies]
        while not paths:
            await asyncio.sleep(0.01)
        may_end.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    loaded, refused = asyncio.run(both())
    assert loaded == "Success: LoRA adapter 'new' added successfully."
    assert (refused.param, paths) == ("lora_name", ["a"])


def test_changes_of_adapters_are_off_unless_asked_for(server):
    headers = {"Authorization": "Bearer sk-another"}
    for route in ("load_lora_adapter", "unload_lora_adapter"):
        response = httpx.post(f"{server.url}/v1/{route}", content=b"?", headers=headers)
        assert response.status_code == 403
        assert "--allow-adapters FOLDER" in response.json()["error"]["message"]
        assert httpx.post(f"{server.url}/v1/{route}", json={}).status_code == 401


@pytest.mark.parametrize("name", ["a", "0", "A-b_c.d:e", "a/b/c", "ft:gpt-4o:org::id", "a" * 128])
def test_names_of_letters_digits_and_a_few_marks_are_fit(name):
    check_name(name, field="adapter", base="tiny")


@pytest.mark.parametrize(
    "name",
    [
        *("", " a", "a b", "a=b", "../a", "a/../b", "a//b", "/a", "a/", ".a", "-a", "é", "a\n"),
        *("a" * 129, "a?b", "a#b", "a%2e", "a\x00", "a\\b", "a\u202e"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"adapter must have a name of at most 128 ASCII letters"):
        check_name(name, field="adapter", base="tiny")


def test_a_name_is_an_adapters_own():
    with pytest.raises(ValueError, match="got 'tiny', that of the base model; choose another"):
        check_name("tiny", field="adapter", base="tiny")
    with pytest.raises(ValueError, match="got 'poet', that of another adapter; choose another"):
        check_name("poet", field="adapter", base="tiny", taken=["poet"])


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ({"tiny": Adapter(0, "a")}, "adapters must have a name of its own, got 'tiny'"),
        ({"poet": Adapter(0, "a")}, r"engine's loaded adapters \(none\), got adapter=0"),
    ],
)
def test_wrong_adapters_of_an_application_are_refused(server, adapters, words):
    with pytest.raises(ValueError, match=words):
        app(server.engine, name="tiny", tokenizer=ByteTokenizer(), adapters=adapters)
