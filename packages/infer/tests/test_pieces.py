# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Special tokens in text, likeliest tokens of streams, and ends on every route."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from engines import engine, text_engine

from dovetail_infer import Sampling, batch
from dovetail_infer.testing import ByteTokenizer


class _Bare(ByteTokenizer):
    """Without a bos, and with an eos that a model of 61 tokens lacks."""

    bos_id = None


@pytest.fixture(scope="module")
def texts():
    """An engine of texts that several tests share."""
    with text_engine() as shared:
        yield shared


@pytest.mark.thorough
@pytest.mark.parameter("skip_special_tokens", "stop")
def test_special_tokens_stay_in_the_text(texts):
    """Streamed and whole, up to a stop string that is the name of one, or to a stop id."""
    bos, eos, tokenizer = 256, 257, ByteTokenizer()
    bias = {**dict.fromkeys(range(258), -np.inf), 97: 0.0, bos: 0.5, eos: 0.5}
    option = Sampling(max_tokens=20, seed=2, logit_bias=bias, ignore_eos=True)
    (free,) = texts.generate(["ab"], option)
    assert free.text == "a" * free.tokens.tolist().count(97)
    option = dataclasses.replace(option, skip_special_tokens=False)
    named, ids = tokenizer.decode_with_specials(free.tokens), free.tokens.tolist()
    cases = [
        ({}, named),
        ({"stop": "<|eos|>"}, named[: named.index("<|eos|>")]),
        ({"stop": "|><|bos"}, named[: named.index("|><|bos")]),
        ({"stop_token_ids": [eos]}, tokenizer.decode_with_specials(ids[: ids.index(eos)])),
    ]
    for change, text in cases:
        (whole,) = texts.generate(["ab"], dataclasses.replace(option, **change))
        with texts.stream("ab", dataclasses.replace(option, **change)) as stream:
            assert "".join(piece.text for piece in stream) == whole.text == text


@pytest.mark.thorough
@pytest.mark.parameter("logprobs")
@pytest.mark.parametrize("stop", [(), "a"])
def test_streamed_likeliest_tokens_join_to_those_of_the_completion(texts, stop):
    option = Sampling(max_tokens=24, seed=5, logprobs=3, stop=stop, ignore_eos=True)
    with texts.stream("ab", option) as stream:
        pieces = list(stream)
    whole = stream.completion
    for name in ("tokens", "logprobs", "ranks"):
        joined = np.concatenate([getattr(piece.top, name) for piece in pieces])
        np.testing.assert_array_equal(joined, getattr(whole.top, name))
    assert all(len(piece.top.tokens) == len(piece.tokens) for piece in pieces)
    assert np.concatenate([piece.tokens for piece in pieces]).tolist() == whole.tokens.tolist()
    with texts.stream("ab", dataclasses.replace(option, logprobs=None)) as stream:
        assert [piece.top for piece in stream] == [None] * len(pieces)


@pytest.mark.thorough
@pytest.mark.parameter("eos_ids")
def test_every_route_ends_at_the_ids_of_the_engine(tmp_path):
    option = Sampling(max_tokens=3, temperature=0, logit_bias={9: 100.0}, seed=0)
    (tmp_path / "in.jsonl").write_text('{"prompt": "\\u0001"}\n')
    with engine(tokenizer=_Bare(), eos_ids=[9]) as running:
        with running.stream([1], option) as stream:
            assert [piece.text for piece in stream] == [""]
        requests = batch.read(tmp_path / "in.jsonl", option, model="tiny")
        with batch.Results(tmp_path / "out.jsonl", requests) as results:
            ((pair,),) = batch.generate(running, results)
        ends = [
            stream.completion,
            pair[1],
            *running.generate([[1]], option),
            *running.sample([[1]], option, n=1)[0],
        ]
        assert [(found.stop, found.tokens.tolist()) for found in ends] == [(9, [9])] * 4
        assert len(running.score([[1, 9, 9, 2]])[0]) == 3  # none of them ends a text to score
