# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_models import bert, init, llama
from dovetail_models.layers.inputs import (
    check_positions,
    check_types,
    restart,
)
from dovetail_models.layers.linear import check_form, check_tokens

DECODER = llama(vocab_size=7, embed=4, depth=1, heads=1, mlp=4)
ENCODER = bert(vocab_size=7, embed=4, depth=1, heads=1, mlp=4)

CHECKS = {
    "tokens": (
        functools.partial(check_tokens, vocab_size=7),
        ["Every token must be in [0, vocab_size)", "with vocab_size=7", "Use the tokenizer"],
    ),
    "types": (
        functools.partial(check_types, count=7),
        ["Every token type must be in [0, token_types)", "with token_types=7", "Use the types"],
    ),
    "positions": (
        functools.partial(check_positions, max_length=7),
        ["Every position must have a learned vector", "with max_length=7", "a shorter sequence"],
    ),
}
every = pytest.mark.parametrize("check, parts", CHECKS.values(), ids=CHECKS)


@every
@pytest.mark.parametrize("bad, number", [([0, 7], "7"), ([-2, 3], "-2")])
def test_an_index_without_a_vector_is_refused(check, parts, bad, number):
    with pytest.raises(ValueError, match="Every") as error:
        check(jnp.array(bad))
    assert all(part in str(error.value) for part in parts)
    assert number in str(error.value)


@every
def test_what_has_a_vector_or_is_not_known_passes(check, parts):
    check(jnp.array([0, 6]))
    check(jnp.zeros(0, jnp.int32))
    jax.jit(lambda index: check(index) or index)(jnp.array([9]))


def test_positions_restart_in_each_run_of_a_segment():
    # Segment 1 comes back after 2: a new run.
    segments = jnp.array([[1, 1, 2, 2, 2, 1, 0, 0], [3, 3, 3, 3, 3, 3, 3, 4]])
    want = [[0, 1, 0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 0]]
    np.testing.assert_array_equal(restart(segments), want)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tokens, error, message",
    [
        (jnp.ones((1, 2)), TypeError, r"integers, got dtype=float32. Use .astype"),
        (jnp.ones(3, jnp.int32), ValueError, r"\[B, T\], got shape=\(3,\). Use tokens\[None\]"),
    ],
)
def test_what_are_no_rows_of_ids_are_refused(monkeypatch, tokens, error, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        check_form(tokens)
    for config in (DECODER, ENCODER):
        with pytest.raises(error, match=message):
            init(config, seed=0).features(tokens)


@pytest.mark.parametrize("tokens", [np.ones((2, 0), np.int64), jnp.ones((1, 3), jnp.uint8)])
def test_arrays_of_ids_pass(tokens):
    check_form(tokens)
    jax.eval_shape(lambda x: check_form(x) or x, tokens)
