# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of a request: defaults, ranges and the messages for bad values."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dovetail_infer import Sampling

# Of each option: good values, and bad ones with the three parts of their message.
GOOD = {
    "max_tokens": [1, np.int64(9)],
    "temperature": [0, 2.0**-126, 0.7, np.float32(1.5)],
    "top_k": [None, 1, 10**9],
    "top_p": [1, 2.0**-126, 0.5],
    "min_p": [0, 1, 0.1],
    "repetition_penalty": [0.5, 2],
    "frequency_penalty": [-2, 0.5],
    "presence_penalty": [-2.0, 3],
    "logit_bias": [{}, {3: -math.inf, np.int32(4): 1}],
    "min_tokens": [0, 16],
    "seed": [None, 0, 2**64 - 1],
    "stop": ["a", ["a", "bc"], ()],
    "stop_token_ids": [(), [1, np.int32(2)], np.array([3])],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0],
    "kept": [True, False],
    "rule": [None, max],
    "adapter": [None, 0],
    "cache_salt": [None, "tenant"],
    "deadline_s": [None, 0.5, 10],
    "priority": [-3, 0, np.int64(7)],
}


BAD = [
    ("max_tokens", 0, "max_tokens must be an integer >= 1, got max_tokens=0. Use max_tokens=128."),
    ("max_tokens", 2.0, "got max_tokens=2.0."),
    ("max_tokens", True, "got max_tokens=True."),
    ("temperature", -1, "temperature must be a float32 >= 0, got temperature=-1. Use 0 for greedy"),
    ("temperature", 1e-40, "got temperature=1e-40."),
    ("temperature", math.inf, "got temperature=inf."),
    ("temperature", math.nan, "got temperature=nan."),
    ("temperature", "hot", "got temperature='hot'."),
    ("top_k", 0, "top_k must be an integer >= 1, or None, got top_k=0. Use None for all tokens."),
    ("top_k", 2**31, "got top_k=2147483648."),
    ("top_p", 0, "top_p must be a float32 in (0, 1], got top_p=0. Use 1.0 for all tokens, top_k=1"),
    ("top_p", 1.01, "got top_p=1.01."),
    ("top_p", 1e-50, "got top_p=1e-50."),
    ("min_p", -0.1, "min_p must be in [0, 1], got min_p=-0.1. Use 0.0 for all tokens."),
    ("min_p", 1.1, "got min_p=1.1."),
    ("repetition_penalty", 0, "must be a float32 > 0, got repetition_penalty=0. Use 1.0 for no"),
    ("repetition_penalty", 1e39, "got repetition_penalty=1e+39."),
    ("frequency_penalty", math.inf, "a finite float32, got frequency_penalty=inf. Use 0.0 for no"),
    ("presence_penalty", -1e39, "a finite float32, got presence_penalty=-1e+39. Use 0.0 for no"),
    ("logit_bias", {1: math.inf}, "finite float32s or -inf, got logit_bias={1: inf}. Use {token:"),
    ("logit_bias", {1: 1e39}, "got logit_bias={1: 1e+39}."),
    ("logit_bias", {"1": 1.0}, "logit_bias must map token ids to"),
    ("logit_bias", {-1: 1.0}, "got logit_bias={-1: 1.0}."),
    ("logit_bias", [1.0], "got logit_bias=[1.0]."),
    ("min_tokens", -1, "min_tokens must be an integer >= 0, got min_tokens=-1. Use 0 for no"),
    (
        "min_tokens",
        17,
        "at most max_tokens, got min_tokens=17 and max_tokens=16. Raise max_tokens.",
    ),
    ("seed", -1, "seed must be an integer in [0, 2**64), or None, got seed=-1. Use None for a new"),
    ("seed", 2**64, "got seed=18446744073709551616."),
    ("stop", "", "stop must hold texts with at least one character, got stop=''. Use stop=() for"),
    ("stop", ["a", ""], "got stop=['a', '']."),
    ("stop", b"a", "got stop=b'a'."),
    ("stop", 5, "got stop=5."),
    (
        "stop_token_ids",
        [-1],
        "stop_token_ids must hold integers >= 0, got stop_token_ids=[-1]. Use",
    ),
    ("stop_token_ids", "END", "got stop_token_ids='END'. Use stop for texts."),
    ("stop_token_ids", 5, "got stop_token_ids=5."),
    ("stop_token_ids", [True], "got stop_token_ids=[True]."),
    ("ignore_eos", 1, "ignore_eos must be True or False, got ignore_eos=1. Use ignore_eos=True."),
    ("skip_special_tokens", 0, "must be True or False, got skip_special_tokens=0. Use skip_"),
    ("logprobs", -1, "logprobs must be an integer >= 0, or None, got logprobs=-1. Use None for"),
    ("logprobs", True, "got logprobs=True."),
    ("prompt_logprobs", -1, "an integer >= 0, or None, got prompt_logprobs=-1. Use None for none."),
    ("kept", "yes", "kept must be True or False, got kept='yes'. Use kept=True."),
    ("rule", 3, "rule must be a function of (warped logits, key), got rule=3. Pass the function"),
    ("adapter", -1, "an integer >= 0, or None, got adapter=-1. Use None for the base model."),
    ("cache_salt", "", "at least one character, or None, got cache_salt=''. Use None for"),
    ("cache_salt", 3, "cache_salt must be a text with at least one character, or None, got"),
    ("deadline_s", 0, "a number of seconds > 0, or None, got deadline_s=0. Use None for none."),
    ("priority", 0.5, "priority must be an integer, got priority=0.5. Use -1 to run before"),
    ("priority", True, "got priority=True."),
]


def test_every_option_is_tried() -> None:
    names = {field.name for field in dataclasses.fields(Sampling)}
    assert names == GOOD.keys() == {name for name, _, _ in BAD}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.usefixtures("unchecked")
def test_good_values_are_kept_in_the_types_of_python(name: str) -> None:
    plain = (int, float, bool, str, tuple, dict, type(None), type(max))
    for value in GOOD[name]:
        kept = getattr(Sampling(**{name: value}), name)
        assert type(kept) in plain
        if isinstance(value, (list, np.ndarray, dict)):
            assert list(kept) == list(value)
            assert all(type(x) in (int, str) for x in kept)
        elif name == "stop" and isinstance(value, str):
            assert kept == (value,)
        else:
            assert kept == value


@pytest.mark.parametrize("name, value, message", BAD)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parameter(
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "min_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
    "kept",
    "rule",
    "adapter",
    "cache_salt",
    "deadline_s",
    "priority",
    refuses=True,
)
def test_bad_values_are_refused_by_name(name: str, value: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        Sampling(**{name: value})
    assert message in str(error.value)
    rule, _, rest = str(error.value).partition(", got ")
    assert " must " in rule
    assert name in rest.partition(". ")[0]
    assert rest.partition(". ")[2]


def test_nothing_can_be_changed_and_everything_is_named() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().top_k = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="Name them: max_tokens"):
        Sampling(3)  # pyright: ignore[reportCallIssue]
