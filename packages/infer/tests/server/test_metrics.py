# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each series of the metrics: its own counter of the engine, and values that requests change."""

import dataclasses
from typing import Any

import engines
import httpx
import jax
import pytest
from clients import KEY
from flax import nnx

from dovetail_infer.server import KeyLimits
from dovetail_infer.server.metrics import Metrics
from dovetail_infer.stats import PageStats, Stats

BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "ignore_eos": True}
HEADERS = {"Authorization": f"Bearer {KEY}"}


def values(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#"]
    return {name.removeprefix("dovetail_infer_"): float(value) for name, value in lines}


def test_each_counter_of_the_engine_has_its_series(monkeypatch):
    stats = Stats(
        waiting=2,
        running=3,
        pages=(
            PageStats(window=None, used=5, cached=7, free=11),
            PageStats(window=16, used=13, cached=17, free=19),
        ),
        steps=23,
        read_tokens=29,
        drawn_tokens=31,
        prompt_tokens=37,
        cached_tokens=41,
        finished={"stop": 43, "length": 47},
        preemptions=53,
        failed_steps=59,
        late_compiles=61,
        compiled=67,
        version=71,
        host_s=73.5,
        step_s=79.5,
    )
    with engines.text_engine() as engine:
        monkeypatch.setattr(engine, "stats", lambda: stats)
        engine.fit = dataclasses.replace(engine.fit, weights_bytes=1000)
        shown = values(Metrics(engine).exposition().decode())
    expected = {
        "waiting_requests": 2,
        "running_requests": 3,
        'pages{use="used",window="all"}': 5,
        'pages{use="cached",window="all"}': 7,
        'pages{use="free",window="all"}': 11,
        'pages{use="used",window="16"}': 13,
        'pages{use="cached",window="16"}': 17,
        'pages{use="free",window="16"}': 19,
        "steps_total": 23,
        "drawn_tokens_total": 31,
        "prompt_tokens_total": 37,
        "cached_tokens_total": 41,
        'finished_total{reason="stop"}': 43,
        'finished_total{reason="length"}': 47,
        "preemptions_total": 53,
        "failed_steps_total": 59,
        "late_compilations_total": 61,
        "compiled_programs": 67,
        "weights_version": 71,
        "host_seconds_total": 73.5,
        "step_seconds_total": 79.5,
        "weight_bytes_total": 23_000,
    }
    shown = {_sorted(name): value for name, value in shown.items()}
    assert {name: shown.get(_sorted(name)) for name in expected} == expected


def _sorted(name: str) -> str:
    """A series with its labels in order."""
    family, _, labels = name.partition("{")
    return f"{family}{{{','.join(sorted(labels.rstrip('}').split(',')))}}}"


@pytest.mark.thorough("a server of its own")
@pytest.mark.capability("metrics of requests")
def test_requests_change_their_series(start):
    server = start(limits=KeyLimits(requests=1))

    def scrape() -> dict[str, float]:
        return values(httpx.get(f"{server.url}/metrics", headers=HEADERS).text)

    def ask(**change: Any) -> httpx.Response:
        url = f"{server.url}/v1/completions"
        return httpx.post(url, json={**BODY, **change}, headers=HEADERS, timeout=60)

    before = scrape()
    prompt = "a prompt of five pages"
    ask(prompt=prompt, n=2)
    ask(prompt=prompt, stream=True)
    assert ask(prompt=prompt, best_of=3).status_code == 400
    httpx.get(f"{server.url}/v1/models")
    after = scrape()
    weights = server.engine.fit.weights_bytes
    assert weights == 4 * sum(leaf.size for leaf in leaves()) > 0
    assert after["weight_bytes_total"] == after["steps_total"] * weights
    changed = {name: value - before.get(name, 0) for name, value in after.items()}
    key = next(name for name in after if name.startswith("refused") and "unsupported" in name)
    assert KEY not in key
    assert changed[key] == 1
    assert changed['refused_requests_total{code="invalid_api_key",key=""}'] == 1
    assert changed["queue_seconds_count"] == 2  # of requests, the longest of their choices
    assert changed["time_to_first_token_seconds_count"] == 1
    assert 1 <= changed["inter_token_latency_seconds_count"] <= 4
    assert changed["drawn_tokens_total"] == 15
    assert changed["cached_tokens_total"] > 0
    assert changed["compiled_programs"] > 0
    assert changed["late_compilations_total"] > 0
    assert changed["steps_total"] > 0
    assert changed["step_seconds_total"] > 0
    assert changed["host_seconds_total"] > 0
    assert changed['finished_total{reason="length"}'] == 3
    assert changed['http_responses_total{route="/v1/completions",status="200"}'] == 2
    assert changed['http_responses_total{route="/v1/completions",status="400"}'] == 1


def leaves() -> list[Any]:
    return jax.tree.leaves(nnx.state(engines.byte_decoder()))
