# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_tune import Field, TokenLogps
from dovetail_tune.objectives.row_scores import score_rows

# One pair: answers of 3 tokens, with a gap that does not count, and of 1.
MASK = np.array([[0, 1, 0, 1, 1], [0, 0, 1, 0, 0]], np.float32)
LOGPS = np.array([[9, -1, 9, -2, -4], [9, 9, -8, 9, 9]], np.float32)
REF = np.array([[7, -3, 7, -5, -6], [7, 7, -1, 7, 7]], np.float32)
BATCH = {"tokens": np.zeros((2, 5), np.int32), "mask": MASK, "ref_logps": REF}


def _score(shift, batch, *, temperature=1.0):
    """Numbers by hand, as a decoder's: 0 where the mask is 0."""
    cooler = 0.5 + shift if temperature == 0.5 else 0.0
    return TokenLogps(jnp.where(batch["mask"] > 0, LOGPS + shift + cooler, 0.0), None)


def _rows(shift=0.0, **options):
    settings = {"reference": Field(), "scorer": _score, "length_weight": 1.0, "weighted": False}
    return score_rows(shift, BATCH, **(settings | options))


@pytest.mark.parametrize(
    ("length_weight", "policy", "ref"),
    [(1.0, [-7, -8], [-14, -1]), (0.5, [-4, -8], [-8.5, -1]), (0.0, [-1, -8], [-3, -1])],
)
def test_tokens_behind_the_shorter_answer(length_weight, policy, ref):
    rows = _rows(length_weight=length_weight)
    np.testing.assert_array_equal(rows.policy, policy)
    np.testing.assert_array_equal(rows.ref, ref)
    np.testing.assert_array_equal(rows.plain, [-7, -8])
    np.testing.assert_array_equal(rows.tokens, [3, 1])
    np.testing.assert_array_equal(rows.weight, 1)


def test_weights_are_constants():
    rows = _rows(weighted=True)
    np.testing.assert_allclose(rows.weight, np.exp([0.5, 0.5]), rtol=1e-6)
    slope = jax.grad(lambda shift: _rows(shift, weighted=True).weight.sum())(0.0)
    assert slope == 0


def test_the_reference_is_a_constant():
    slope = jax.grad(lambda shift: _rows(shift, length_weight=0.5).ref.sum())(0.0)
    assert slope == 0
    slope = jax.grad(lambda shift: _rows(shift, length_weight=0.5).policy.sum())(0.0)
    assert slope == 1 + 0.5 + 0.5 + 1
