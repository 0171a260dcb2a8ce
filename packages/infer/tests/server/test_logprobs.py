# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities over HTTP, against a forward pass of the model."""

from typing import Any

import engines
import numpy as np
import pytest
from clients import chat_ids

from dovetail_infer.testing import ByteTokenizer

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.thorough("programs with log-probabilities of prompts")
@pytest.mark.parameter("request.logprobs", "request.echo")
def test_logprobs_of_a_completion_are_the_models(client):
    model = engines.byte_decoder()
    ids = [256, *b"Hello"]
    answer = client.completions.create(prompt=ids, logprobs=2, echo=True, **GREEDY)
    given = answer.choices[0].logprobs
    drawn = engines.greedy(model, ids, 8)[: len(given.tokens) - len(ids)]
    tokens = [*ids, *drawn]
    own = engines.logprobs(model, tokens)
    assert given.token_logprobs[0] is None
    expected = [own[i, token] for i, token in enumerate(tokens[1:])]
    # Float32 on both sides, over a vocabulary of 258.
    np.testing.assert_allclose(given.token_logprobs[1:], expected, atol=1e-4)
    assert given.tokens[: len(ids)] == ["<|bos|>", *"Hello"]
    for i in range(len(tokens) - 1):
        best = np.sort(own[i])[::-1][:2]
        # Texts of several tokens may be one, so there may be fewer keys.
        assert abs(max(given.top_logprobs[i + 1].values()) - best[0]) < 1e-4
    assert answer.choices[0].text == ByteTokenizer().decode(tokens)
    # The name of bos is a token's text, and no part of the answer's.
    offsets = np.cumsum([0, *map(len, given.tokens)])[:-1]
    assert given.text_offset == offsets.tolist()


@pytest.mark.thorough("programs with the likeliest tokens")
def test_places_of_streamed_tokens_are_those_of_the_whole(client):
    options = {"prompt": "Hello", "logprobs": 1, **GREEDY}
    whole = client.completions.create(**options).choices[0].logprobs
    pieces = [c.choices[0].logprobs for c in client.completions.create(stream=True, **options)]
    joined = [place for piece in pieces if piece is not None for place in piece.text_offset]
    assert joined == whole.text_offset
    assert len(set(joined)) > 1


@pytest.mark.thorough("programs with log-probabilities of prompts")
def test_max_tokens_0_scores_a_prompt(client):
    ids = [256, *b"Hello"]
    answer = client.completions.create(
        model="tiny", prompt=ids, max_tokens=0, echo=True, logprobs=1
    )
    assert answer.choices[0].text == "Hello"
    assert len(answer.choices[0].logprobs.tokens) == len(ids)
    assert answer.usage.completion_tokens == 0


@pytest.mark.thorough("programs with the likeliest tokens")
@pytest.mark.parameter("request.logprobs", "request.top_logprobs")
def test_logprobs_of_a_chat(client):
    answer = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=3, **GREEDY)
    own = engines.logprobs(engines.byte_decoder(), chat_ids(HELLO))[-1]
    first = answer.choices[0].logprobs.content[0]
    assert abs(first.logprob - own.max()) < 1e-4
    best = np.sort(own)[::-1][:3]
    np.testing.assert_allclose([t.logprob for t in first.top_logprobs], best, atol=1e-4)
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    stream = client.chat.completions.create(
        messages=HELLO, logprobs=True, top_logprobs=3, stream=True, **GREEDY
    )
    pieces = [c.choices[0].logprobs for c in stream]
    joined = [token for piece in pieces if piece is not None for token in piece.content]
    assert joined == answer.choices[0].logprobs.content
