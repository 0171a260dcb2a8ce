# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options and weights at the ends of their ranges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from engines import SMALL, VOCAB, decoder, engine, greedy, logprobs
from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.testing import ByteTokenizer, TinyDecoder

GREEDY = Sampling(max_tokens=4, temperature=0)
BAN_ALL = dict.fromkeys(range(VOCAB), -math.inf)
BAD = 13  # a token whose embedding is NaN


@pytest.fixture(scope="module")
def running() -> Iterator[Engine]:
    """An engine whose model gives NaN for one token."""
    model = TinyDecoder(vocab_size=VOCAB, rngs=nnx.Rngs(0))
    model.embedding[...] = model.embedding[...].at[BAD].set(jnp.nan)
    with engine(model) as shared:
        yield shared


def _first(warped: Any, key: Any) -> Any:
    return jnp.argmax(warped)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "option",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.1},
        {"logprobs": 3},
        {"prompt_logprobs": 2},
        {"rule": _first},
        {"kept": True, "top_k": 3},
        {"logit_bias": {1: -math.inf}, "min_tokens": 1},
    ],
    ids=str,
)
def test_nan_in_one_row_leaves_its_company_alone(running: Engine, option: dict[str, Any]) -> None:
    bad, good = Sampling(max_tokens=4, seed=0, **option), dataclasses.replace(GREEDY, logprobs=2)
    ids = [[1, BAD, 2], [5, 6], [1, BAD], [7]]
    one, two, three, four = running.generate(ids, [bad, good, good, good])
    for failed in (one, three):
        assert (failed.finish_reason, len(failed.tokens)) == ("error", 0)
        assert "NaN" in failed.error
    for prompt, found in ((ids[1], two), (ids[3], four)):
        want = greedy(decoder(), prompt, 4)
        assert found.tokens.tolist() == want
        rows = logprobs(decoder(), prompt + want)[len(prompt) - 1 : -1]
        np.testing.assert_allclose(found.logprobs, rows[np.arange(4), want], atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "option",
    [
        {"logit_bias": BAN_ALL},
        {"logit_bias": {**BAN_ALL, 3: 0.0}, "stop_token_ids": [3], "min_tokens": 1},
        {"logit_bias": BAN_ALL, "temperature": 0},
        {"logit_bias": BAN_ALL, "rule": _first},
    ],
    ids=["bias", "stops", "greedy", "rule"],
)
def test_a_request_without_a_token_left_ends_with_an_error(
    running: Engine, option: dict[str, Any]
) -> None:
    found, good = running.generate([[1, 2], [5, 6]], [Sampling(**option), GREEDY])
    assert (found.finish_reason, len(found.tokens)) == ("error", 0)
    assert "every token is banned" in found.error
    assert good.tokens.tolist() == greedy(decoder(), [5, 6], 4)


@pytest.mark.thorough
def test_min_tokens_bans_stop_ids_up_to_its_last_token(running: Engine) -> None:
    """With one other token allowed, the stop id comes as soon as it may."""
    bias = {**BAN_ALL, 3: 50.0, 4: 0.0}
    for least in range(4):
        option = Sampling(max_tokens=6, logit_bias=bias, stop_token_ids=[3], min_tokens=least)
        (found,) = running.generate([[1]], option)
        assert found.tokens.tolist() == [4] * least + [3]


@pytest.mark.thorough
def test_ends_of_ranges(running: Engine) -> None:
    def draw(**option: Any) -> list[int]:
        (found,) = running.generate([[1, 2]], Sampling(max_tokens=5, **{"seed": 1, **option}))
        assert found.finish_reason == "length"
        assert np.isfinite([found.logprobs, found.sampled_logprobs, found.log_mass]).all()
        return found.tokens.tolist()

    whole = draw()
    assert draw(top_k=VOCAB) == draw(top_k=VOCAB + 1) == draw(top_k=2**31 - 1) == whole
    cold = greedy(decoder(), [1, 2], 5)
    assert [draw(temperature=t) for t in (0, 2.0**-126, 1e-30)] == [cold] * 3
    assert draw(temperature=1e30) == draw(temperature=3e38) != whole
    assert draw(seed=2**64 - 1) != draw(seed=2**32 - 1)
    (one,) = running.generate([[1] * 63], Sampling(max_tokens=10, temperature=0))
    assert (one.finish_reason, one.tokens.tolist()) == ("length", greedy(decoder(), [1] * 63, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("length", [15, 16, 17, 59, 60])
def test_prompts_at_the_borders_of_pages_and_chunks(running: Engine, length: int) -> None:
    ids = [1 + i % 11 for i in range(length)]
    for _ in range(2):  # the second time from the prefix cache
        found = running.generate([ids, ids], GREEDY)
        assert [c.tokens.tolist() for c in found] == [greedy(decoder(), ids, 4)] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
def test_prompts_of_any_integer_dtype(running: Engine, dtype: Any) -> None:
    found = running.generate([np.array([1, 2], dtype), jnp.array([1, 2])], GREEDY)
    assert [c.tokens.tolist() for c in found] == [greedy(decoder(), [1, 2], 4)] * 2


class _Without(ByteTokenizer):
    bos_id = None


@pytest.mark.thorough
def test_an_empty_text_is_its_bos_or_refused() -> None:
    model = TinyDecoder(rngs=nnx.Rngs(0))
    with Engine(model, tokenizer=ByteTokenizer(), **SMALL) as running:
        assert running.generate([""], GREEDY)[0].prompt_tokens == 1
    refused = pytest.raises(ValueError, match=r"at least one token, got none in prompts\[0\]")
    with Engine(model, tokenizer=_Without(), **SMALL) as running, refused:
        running.generate([""], GREEDY)


class _Larger(ByteTokenizer):
    bos_id, eos_id = None, 60


@pytest.mark.parameter("tokenizer", refuses=True)
def test_a_tokenizer_with_more_ids_than_the_model() -> None:
    """Ids beyond the model are refused in the prompt that has them."""
    with pytest.raises(ValueError, match=r"eos_id must be below .* 61 tokens, got eos_id=257\. Us"):
        engine(tokenizer=ByteTokenizer())
    with engine(tokenizer=ByteTokenizer(), eos_ids=[60]) as running:
        for prompt, got in (
            ("\x01", r"256 \(the tokenizer's bos\)"),
            ([1, 97], r"97 \('a'\)"),
            ([257], r"257 \(a special token\)"),
        ):
            with pytest.raises(ValueError, match=rf"\[0, 61\).*got {got} in prompts\[0\]\. Use"):
                running.generate([prompt], GREEDY)
    with engine(tokenizer=_Larger(), invariant=True) as running:
        with pytest.raises(ValueError, match=r"in \[0, 61\).*got 97 \('a'\) in prompts\[0\]\. Use"):
            running.generate(["a"], GREEDY)
        (found,) = running.generate(["\x01\x02"], dataclasses.replace(GREEDY, ignore_eos=True))
        assert found.tokens.tolist() == greedy(decoder(), [1, 2], 4)


@pytest.mark.parameter("eos_ids", "ignore_eos")
def test_a_model_may_have_several_end_ids() -> None:
    """They replace the tokenizer's; `min_tokens` bans them all."""
    ends = {7: 90.0, 9: 100.0}
    option = Sampling(max_tokens=4, temperature=0, logit_bias=ends)
    with engine(tokenizer=_Larger(), eos_ids=[9, 7, 7], invariant=True) as running:
        (found,) = running.generate([[1, 2]], option)
        assert (found.finish_reason, found.stop, found.tokens.tolist()) == ("stop", 9, [9])
        (found,) = running.generate([[1, 2]], dataclasses.replace(option, min_tokens=2))
        assert (found.stop, found.tokens[-1]) == (9, 9)
        assert not {7, 9} & set(found.tokens[:-1].tolist())
        (found,) = running.generate([[1, 2]], dataclasses.replace(option, ignore_eos=True))
        assert (found.finish_reason, found.tokens.tolist()) == ("length", [9] * 4)
        option = dataclasses.replace(option, logit_bias={60: 100.0})  # the tokenizer's own
        assert running.generate([[1, 2]], option)[0].finish_reason == "length"


def test_a_model_may_have_no_end_id() -> None:
    option = Sampling(max_tokens=4, temperature=0, logit_bias={60: 100.0})  # the tokenizer's own
    with engine(eos_ids=(), invariant=True) as running:
        assert running.generate([[1, 2]], option)[0].finish_reason == "length"


@pytest.mark.parameter("eos_ids", refuses=True)
def test_end_ids_are_those_of_the_model(unchecked: None) -> None:
    for ids, error, message in (
        ([2, 61], ValueError, r"below the model's 61 tokens, got eos_ids with 61\. Use ids"),
        ([True], ValueError, r"got eos_ids with True\. Use"),
        (2, TypeError, r"a sequence of token ids, got eos_ids=2\. Use eos_ids=\[2\]"),
    ):
        with pytest.raises(error, match=message):
            engine(eos_ids=ids)


@pytest.mark.parametrize(
    "option, error, words",
    [
        ({"page_size": 16.0}, TypeError, ("an integer", "page_size=16.0", "default")),
        ({"max_logprobs": -1}, ValueError, ("at least 0", "max_logprobs=-1", "default")),
        ({"adapters": -1}, ValueError, ("at least 0", "adapters=-1", "default")),
        ({"adapters": 1}, TypeError, ("TinyDecoder.features", "adapter_ids", "Add them")),
        ({"kv_dtype": jnp.int8}, ValueError, ("float dtype", "int8", "None")),
        ({"model": nnx.Linear(2, 3, rngs=nnx.Rngs(0))}, TypeError, ("decoder", "Linear", "See")),
    ],
    ids=str,
)
@pytest.mark.parameter("max_logprobs", "adapters", "kv_dtype", refuses=True)
@pytest.mark.usefixtures("unchecked")
def test_arguments_of_the_engine(option: Any, error: type[Exception], words: Any) -> None:
    with pytest.raises(error) as raised:
        engine(**option)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_options_of_another_type(running: Engine) -> None:
    wrong: Any = {"max_tokens": 3}
    with pytest.raises(TypeError, match=r"must be a Sampling.*max_tokens.*Use Sampling\("):
        running.generate([[1]], wrong)
    several: Any = [GREEDY, GREEDY]
    for call in (lambda: running.sample([[1]], several, n=2), lambda: running.stream([1], several)):
        with pytest.raises(
            TypeError, match=r"must be a Sampling, got sampling=\[Sam.*Use Sampling"
        ):
            call()
    with pytest.raises(ValueError, match=r"n must be at least 1, got n=0\. Use n=1"):
        running.sample([[1]], n=0, max_tokens=1, seed=0)
    with pytest.raises(ValueError, match=r"at least two tokens.*got 1 in prompts\[0\]\. Leave it"):
        running.score([[1]])
    with pytest.raises(RuntimeError, match=r"finite logits.*'error' with error='the logits.*Check"):
        running.score([[1, BAD, 2]])
    arrays: Any = np.ones((2, 3), np.int32)
    with pytest.raises(TypeError, match=r"list of prompts, got ndarray.*list\(prompts\)"):
        running.generate(arrays, GREEDY)


@pytest.mark.thorough
def test_a_score_that_is_cut_short_is_no_score() -> None:
    """The engine closes after the first of eight chunks."""
    closing: list[Engine] = []

    def events(event: dict[str, Any]) -> None:
        if closing and event["event"] == "step":
            closing[0].close()  # in the engine's thread, which does not wait for itself

    with engine(step_tokens=8, events=events) as running:
        closing.append(running)
        with pytest.raises(RuntimeError, match=r"running engine, got finish_reason='abort'"):
            running.score([[1] * 64])
