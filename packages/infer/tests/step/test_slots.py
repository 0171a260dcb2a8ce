# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options as arrays, kept tokens from bits, and options that an engine does not have."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_infer import Sampling
from dovetail_infer.step import slots
from dovetail_infer.testing import ByteTokenizer


def test_the_state_of_a_slot() -> None:
    sampling = Sampling(logit_bias={3: -math.inf, 0: 2}, stop_token_ids=[1, 7], min_tokens=2)
    state = slots.slot_state(
        sampling, prompt=[4, 2, 4], output=np.array([6, 6, 2]), vocab_size=8, eos_ids=[5, 3]
    )
    assert state.bias.tolist() == [2, 0, 0, -math.inf, 0, 0, 0, 0]
    assert np.flatnonzero(state.prompt).tolist() == [2, 4]
    assert np.flatnonzero(state.stops).tolist() == [1, 3, 5, 7]
    assert state.counts.tolist() == [0, 0, 1, 0, 0, 0, 2, 0]
    assert [x.dtype for x in state] == [np.float32, bool, bool, np.int32]


@pytest.mark.parametrize("eos_ids, ignored", [((), False), ((5, 3), True)])
def test_an_end_that_does_not_end_is_not_banned(eos_ids: tuple[int, ...], ignored: bool) -> None:
    state = slots.slot_state(
        Sampling(stop_token_ids=[1], ignore_eos=ignored),
        prompt=[],
        output=[],
        vocab_size=8,
        eos_ids=eos_ids,
    )
    assert np.flatnonzero(state.stops).tolist() == [1]
    assert not state.prompt.any()
    assert not state.counts.any()


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, 2**32 - 1])
def test_key_data_is_that_of_jax(seed: int) -> None:
    data = jax.random.key_data(jax.random.key(np.uint32(seed), impl="threefry2x32"))
    assert slots.key_data(seed).tolist() == data.tolist()


def test_key_data_of_64_bits() -> None:
    """`programs/draws.py` compares them with those of jax in 64 bits."""
    assert slots.key_data(2**64 - 2).tolist() == [2**32 - 1, 2**32 - 2]
    assert slots.key_data(3 << 32).tolist() == [3, 0]


def test_options_of_rows() -> None:
    samplings = [
        Sampling(temperature=0, min_tokens=3),
        Sampling(top_k=5, top_p=0.9, min_p=0.1, min_tokens=3),
        Sampling(repetition_penalty=1.5, frequency_penalty=-1, presence_penalty=2, rule=max),
    ]
    options = slots.row_options(samplings, seeds=[1, 2, 2**40], outputs=[2, 3, 0])
    third = [np.float32(x) for x in (0.9, 0.1)]
    assert options.temperature.tolist() == [0, 1, 1]
    assert options.top_k.tolist() == [0, 5, 0]
    assert options.top_p.tolist() == [1, third[0], 1]
    assert options.min_p.tolist() == [0, third[1], 0]
    assert options.repetition_penalty.tolist() == [1, 1, 1.5]
    assert options.frequency_penalty.tolist() == [0, 0, -1]
    assert options.presence_penalty.tolist() == [0, 0, 2]
    assert options.bans.tolist() == [True, False, False]
    assert options.ruled.tolist() == [False, False, True]
    assert options.keys.tolist() == [[0, 1], [0, 2], [256, 0]]


def test_no_rows_are_arrays_too() -> None:
    options = slots.row_options([], seeds=[], outputs=[])
    assert [x.shape for x in options] == [(0,)] * 9 + [(0, 2)]


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {1: 1.0}},
        {"min_tokens": 1},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"logprobs": 0},
        {"kept": True},
        {"rule": jnp.argmax},
    ],
)
def test_a_full_step_is_needed(options: dict[str, Any]) -> None:
    assert slots.needs_full(Sampling(**options))


def test_a_plain_step_has_temperature_filters_and_ends() -> None:
    sampling = Sampling(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, stop="a", stop_token_ids=[1], seed=3
    )
    assert not slots.needs_full(sampling)


@pytest.mark.parameter("kept")
def test_kept_tokens_and_bits() -> None:
    rng = np.random.default_rng(0)
    kept = rng.random((5, 70)) < np.array([[0.1], [0.9], [0], [1], [0.5]])
    words = np.zeros((5, 3), "u4")
    for row, i in np.argwhere(kept):
        words[row, i // 32] |= np.uint32(1 << (i % 32))
    bits = slots.kept_of(list(words), top_k=None, vocab_size=70)
    assert bits.tokens is None
    np.testing.assert_array_equal(bits.bits, words)
    ids = slots.kept_of(list(words), top_k=3, vocab_size=70)
    assert ids.bits is None
    assert ids.tokens.shape == (5, 70)
    for row, tokens in zip(kept, ids.tokens, strict=True):
        right = np.flatnonzero(row).tolist()
        assert tokens.tolist() == right + [-1] * (70 - len(right))


def test_nothing_is_kept_without_steps() -> None:
    assert slots.kept_of([], top_k=3, vocab_size=70).tokens.shape == (0, 0)
    assert slots.kept_of([], top_k=None, vocab_size=70).bits.shape == (0, 3)


ENGINE: Any = {"vocab_size": 100, "max_logprobs": 20, "adapters": (0, 1)}
ENGINE |= {"tokenizer": ByteTokenizer()}


@pytest.mark.parametrize(
    "options, engine, message",
    [
        (
            {"logit_bias": {3: 1.0, 100: 1.0}},
            {},
            "logit_bias must hold ids below the model's 100 tokens, got logit_bias with 100. Use",
        ),
        (
            {"stop_token_ids": [99, 250]},
            {},
            "stop_token_ids must hold ids below the model's 100 tokens, got stop_token_ids with",
        ),
        (
            {"logprobs": 21},
            {},
            "logprobs must be at most 20 for this engine, got logprobs=21. Use 20, or an Engine",
        ),
        (
            {"prompt_logprobs": 11},
            {"vocab_size": 10},
            "prompt_logprobs must be at most 10 for this engine, got prompt_logprobs=11. Use 10,",
        ),
        (
            {"adapter": 2},
            {},
            "adapter must be one of the engine's loaded adapters (0, 1), got adapter=2. Use",
        ),
        (
            {"stop": ["END"]},
            {"tokenizer": None},
            "stop needs a tokenizer, got stop=('END',) for an engine without one. Use stop_",
        ),
        (
            {"skip_special_tokens": False},
            {"tokenizer": None},
            "skip_special_tokens=False needs a tokenizer with decode_with_specials, got tokenizer="
            "None. Use dovetail_data.Pretrained, or True.",
        ),
    ],
)
@pytest.mark.parameter(
    "logit_bias",
    "stop_token_ids",
    "logprobs",
    "prompt_logprobs",
    "adapter",
    "stop",
    "skip_special_tokens",
    refuses=True,
)
def test_what_the_engine_lacks_is_refused(
    options: dict[str, Any], engine: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        slots.check_request(Sampling(**options), **ENGINE | engine)


def test_what_the_engine_has_is_accepted() -> None:
    sampling = Sampling(
        logit_bias={99: 1.0},
        stop_token_ids=[99],
        logprobs=20,
        prompt_logprobs=0,
        adapter=1,
        stop="END",
        skip_special_tokens=False,
    )
    slots.check_request(sampling, **ENGINE)
