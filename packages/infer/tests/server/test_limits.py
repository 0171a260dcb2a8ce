# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Limits of keys: their arithmetic, and their release however a request ends."""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from clients import KEY, Running

from dovetail_infer.server import KeyLimits
from dovetail_infer.server.errors import ApiError
from dovetail_infer.server.limits import Account, account_of

BODY: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "temperature": 0, "max_tokens": 8}
ANOTHER = "sk-another"


def headers(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def post(server: Running, key: str = KEY, **change: Any) -> httpx.Response:
    url = f"{server.url}/v1/completions"
    return httpx.post(url, json={**BODY, **change}, headers=headers(key), timeout=60)


@contextlib.contextmanager
def stream(server: Running, **change: Any) -> Iterator[httpx.Response]:
    url = f"{server.url}/v1/completions"
    body = {**BODY, "stream": True, **change}
    with httpx.stream("POST", url, json=body, headers=headers(), timeout=60) as response:
        yield response


def retry_after(error: ApiError) -> int:
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    return int(error.headers["retry-after"])


def test_a_debt_of_tokens_is_paid_in_the_time_that_is_told():
    account = Account("a", KeyLimits(tokens_per_minute=120), now=100.0)
    account.begin(100.0)
    account.spend(150, 100.0)  # 30 more than there were; 2 come back a second
    with pytest.raises(ApiError, match="in a minute must be at most 120, got a request") as caught:
        account.begin(100.0)
    assert retry_after(caught.value) == 16  # 15.5 s until one token is left
    with pytest.raises(ApiError) as caught:
        account.begin(115.4)
    assert retry_after(caught.value) == 1
    account.begin(115.5)
    account.spend(1, 115.5)
    assert account.headers(120.5) == {
        "x-ratelimit-limit-tokens": "120",
        "x-ratelimit-remaining-tokens": "10",
        "x-ratelimit-reset-tokens": "55.000s",
    }
    assert account.headers(1e6)["x-ratelimit-remaining-tokens"] == "120"  # it is never fuller


def test_requests_at_a_time_are_counted_and_their_mean_time_is_the_advice():
    account = Account("", KeyLimits(requests=2), now=0.0)
    for _ in range(100):
        account.begin(0.0)
        account.end(12.0)
    account.begin(0.0)
    account.begin(0.0)
    with pytest.raises(ApiError, match="at a time must be at most 2, got one more") as told:
        account.begin(0.0)
    assert retry_after(told.value) == 6  # two of 12 s each: one ends in 6 s
    assert account.headers(0.0) == {}


def test_accounts_are_found_by_key():
    a, b = accounts = [Account(key, KeyLimits(), 0.0) for key in "ab"]
    assert account_of("Bearer b", accounts) is account_of("bearer b", accounts) is b
    assert account_of("Bearer a", accounts) is a
    assert a.name == hashlib.sha256(b"a").hexdigest()[:8]
    for wrong in ("", "a", "Bearer", "Bearer ", "Bearer ab", "Basic a", "Bearer ä"):
        with pytest.raises(ApiError, match="Authorization: Bearer KEY"):
            account_of(wrong, accounts)
    shared = Account("", KeyLimits(), 0.0)
    assert account_of("", [shared]) is account_of("Bearer any", [shared]) is shared


@pytest.mark.parametrize("name", ["requests", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"must be at least 1, got {name}=0; leave it out"):
        KeyLimits(**{name: 0})


def until_free(server: Running) -> None:
    """Returns once a request of the key is answered."""
    end = time.monotonic() + 30
    while (response := post(server)).status_code == 429:
        assert time.monotonic() < end
        assert response.json()["error"]["code"] == "rate_limit_exceeded"
        time.sleep(0.01)
    assert response.status_code == 200, response.text


@pytest.mark.capability("limits of each key")
def test_a_key_has_its_requests_and_another_has_its_own(narrow):
    narrow.engine.pause()
    try:
        with stream(narrow) as response:
            refused = post(narrow)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1
            wrong = post(narrow, ANOTHER, max_tokens=-1)  # its own key has a place
            assert wrong.status_code == 400
            tokens = httpx.post(
                f"{narrow.url}/tokenize", json={"prompt": "a"}, headers=headers(), timeout=60
            )
            assert tokens.status_code == 200  # it does not run the model
            narrow.engine.resume()
            assert response.read().endswith(b"data: [DONE]\n\n")
    finally:
        narrow.engine.resume()
    until_free(narrow)  # at the end of a stream


def test_a_request_that_fails_frees_its_place(narrow):
    for change in ({"max_tokens": -1}, {"prompt": "a" * 80}, {"model": "another"}):
        assert post(narrow, **change).status_code in (400, 404)
        assert post(narrow).status_code == 200


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_frees_its_place(narrow, streamed):
    narrow.engine.pause()
    try:
        with (
            pytest.raises(httpx.TimeoutException),
            httpx.stream(
                "POST",
                f"{narrow.url}/v1/completions",
                json={**BODY, "stream": streamed},
                headers=headers(),
                timeout=0.3,
            ) as response,
        ):
            response.read()
    finally:
        narrow.engine.resume()
    until_free(narrow)


@pytest.mark.thorough("a server of its own")
def test_tokens_of_prompts_and_answers_are_counted(start):
    server = start(limits=KeyLimits(tokens_per_minute=20))
    began = time.monotonic()
    # 6 ids of the prompt, bos with them, and 8 of the answer.
    first = post(server, ignore_eos=True)
    assert first.json()["usage"]["total_tokens"] == 14
    assert first.headers["x-ratelimit-limit-tokens"] == "20"
    with stream(server, ignore_eos=True) as second:
        # Before it ran: the tokens of the first are gone, but what has come back since.
        left = int(second.headers["x-ratelimit-remaining-tokens"])
        second.read()
    refused = post(server)
    took = time.monotonic() - began
    assert 0 <= left <= took / 3
    assert refused.status_code == 429
    assert "in a minute must be at most 20" in refused.json()["error"]["message"]
    # 28 of 20 are used, and one must be left: 9 tokens, one in 3 s.
    assert 27 - took <= int(refused.headers["retry-after"]) <= 27
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert post(server, ANOTHER).status_code == 200


def test_without_keys_all_requests_share_the_limits(start):
    server = start(limits=KeyLimits(requests=1), api_keys=[])
    server.engine.pause()
    try:
        with stream(server):
            assert post(server, "any").status_code == 429
            assert "at a time must be at most 1" in post(server).json()["error"]["message"]
    finally:
        server.engine.resume()
