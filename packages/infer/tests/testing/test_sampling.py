# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Draws with the reference operations, and operations with a fault, which must not pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_infer import reference
from dovetail_infer.step import logits
from dovetail_infer.testing import check_sampling
from dovetail_infer.testing.sampling import CASES, chi_square


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parameter(
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "kept",
)
def test_draws_are_those_of_the_definition(name: str) -> None:
    check_sampling(reference, cases={name: CASES[name]})


@dataclasses.dataclass(frozen=True)
class Faulty:
    """The reference operations with other filters or draws."""

    warp_logits: Callable[..., Any] = reference.warp_logits
    sample: Callable[..., Any] = reference.sample
    paged_attention: Callable[..., Any] = reference.paged_attention
    paged_write: Callable[..., Any] = reference.paged_write


def without(option: str, value: float) -> Callable[..., Any]:
    """A `warp_logits` that reads another value of an option."""

    def warp_logits(z: jax.Array, **options: jax.Array) -> jax.Array:
        return reference.warp_logits(z, **options | {option: jnp.full_like(options[option], value)})

    return warp_logits


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, option, value",
    [
        ("temperature", "temperature", 0.65),
        ("top_k", "top_k", 3),
        ("top_p", "top_p", 0.75),
        ("min_p", "min_p", 0.15),
        ("all", "top_p", 1.0),
    ],
)
def test_other_filters_fail(name: str, option: str, value: float) -> None:
    with pytest.raises(AssertionError, match=f"case '{name}'"):
        check_sampling(Faulty(without(option, value)), cases={name: CASES[name]})


def test_other_noise_fails() -> None:
    def first_key(z: jax.Array, *, keys: jax.Array) -> jax.Array:
        return reference.sample(z, keys=jnp.broadcast_to(keys[:1], keys.shape))

    def likeliest(z: jax.Array, *, keys: jax.Array) -> jax.Array:
        return jnp.argmax(z, axis=1).astype(jnp.int32)

    for sample in (first_key, likeliest):
        with pytest.raises(AssertionError, match=r"case 'plain': frequencies deviate"):
            check_sampling(Faulty(sample=sample), cases={"plain": CASES["plain"]})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, field, value",
    [
        ("repetition_penalty", "repetition_penalty", 1),
        ("frequency_penalty", "frequency_penalty", 0),
        ("presence_penalty", "presence_penalty", 0),
        ("min_tokens", "bans", False),
        ("penalties, greedy", "repetition_penalty", 1),
        ("all", "presence_penalty", 0),
    ],
)
def test_other_changes_of_the_logits_fail(
    name: str, field: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust = logits.adjust

    def changed(z: jax.Array, rows: logits.Rows, state: logits.State) -> jax.Array:
        return adjust(
            z, rows._replace(**{field: jnp.full_like(getattr(rows, field), value)}), state
        )

    monkeypatch.setattr(logits, "adjust", changed)
    # A new object, so that no program is found that was compiled before.
    operations = Faulty(lambda z, **options: reference.warp_logits(z, **options))
    with pytest.raises(AssertionError, match=f"case '{name}'"):
        check_sampling(operations, cases={name: CASES[name]})


@pytest.mark.parametrize("field", ["bias", "prompt", "stops", "counts"])
def test_a_state_that_is_not_read_fails(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adjust = logits.adjust

    def changed(z: jax.Array, rows: logits.Rows, state: logits.State) -> jax.Array:
        return adjust(z, rows, state._replace(**{field: jnp.zeros_like(getattr(state, field))}))

    monkeypatch.setattr(logits, "adjust", changed)
    operations = Faulty(lambda z, **options: reference.warp_logits(z, **options))
    with pytest.raises(AssertionError, match="case 'all'"):
        check_sampling(operations, cases={"all": CASES["all"]})


def test_chi_square_is_a_normal_deviate() -> None:
    rng = np.random.default_rng(0)
    p = np.array([0.3, 0.25, 0.2, 0.15, 0.1, 0])
    right = [chi_square(rng.choice(6, 2000, p=p), p) for _ in range(500)]
    # The mean of 500 normal numbers is within 5 / sqrt(500).
    assert abs(np.mean(right)) < 0.22
    assert 0.85 < np.std(right) < 1.15
    assert chi_square(rng.choice(6, 2000, p=p[[1, 0, 2, 3, 4, 5]]), p) > 5
    assert chi_square(np.zeros(9, int), np.array([1.0, 0])) == 0
