# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of, rows_of

from dovetail_tune.rows import (
    counted,
    intact_pairs,
    mean_over,
    poisoned,
    row_sums,
    row_tokens,
    split_pairs,
)


def test_pairs_are_neighboring_rows():
    x = np.arange(12.0).reshape(6, 2)
    pair = split_pairs(x)
    np.testing.assert_array_equal(pair.chosen, x[0::2])
    np.testing.assert_array_equal(pair.rejected, x[1::2])


def test_sums_and_tokens_of_a_row():
    batch = rows_of(rows=4, seed=1)
    batch["mask"][2] = 0
    x = np.random.default_rng(0).normal(size=batch["mask"].shape).astype(np.float32)
    np.testing.assert_allclose(row_sums(jnp.asarray(x)), x.astype(np.float64).sum(1), rtol=1e-5)
    expected = np.maximum(batch["mask"].sum(1), 1)
    np.testing.assert_array_equal(row_tokens(batch), expected)
    assert expected[2] == 1


class TestIntactPairs:
    def test_one_id_each(self):
        assert intact_pairs(pairs_of(pairs=3)).tolist() == [True] * 3

    def test_without_ids_all_are_intact(self):
        batch = pairs_of(pairs=3)
        del batch["pair_ids"]
        assert intact_pairs(batch).tolist() == [True] * 3

    def test_torn_pairs_name_their_rows(self):
        batch = pairs_of(pairs=3)
        batch["pair_ids"][[3, 4]] = batch["pair_ids"][[4, 3]]
        first, second = batch["pair_ids"][2:4]
        message = rf"must have one pair_ids, got {first} in row 2 and {second} in row 3; do not"
        with pytest.raises(ValueError, match=message):
            intact_pairs(batch)

    def test_torn_pairs_are_nan_under_jit(self):
        batch = pairs_of(pairs=3)
        batch["pair_ids"][[3, 4]] = batch["pair_ids"][[4, 3]]
        batch = jax.tree.map(jnp.asarray, batch)
        losses = jax.jit(lambda b: poisoned(jnp.ones(3), intact_pairs(b)))(batch)
        assert np.isnan(losses).tolist() == [False, True, True]

    def test_an_odd_number_of_rows(self):
        message = r"rows 2i and 2i \+ 1 must be the chosen .*got 5 rows; batch with dovetail_data"
        with pytest.raises(ValueError, match=message):
            intact_pairs(rows_of(rows=5))


def test_a_pair_counts_if_both_rows_have_a_token():
    batch = pairs_of(pairs=4)
    batch["mask"][2] = 0
    batch["mask"][7] = 0
    where = counted(batch)
    assert where.tolist() == [True, False, True, False]
    total, count = mean_over(jnp.array([1.0, jnp.nan, 2.0, jnp.inf]), where)
    assert (float(total), float(count)) == (3.0, 2.0)


def test_values_that_do_not_count_have_no_gradient():
    where = jnp.array([True, False])
    gradient = jax.grad(lambda x: mean_over(jnp.log(x), where)[0])(jnp.array([2.0, 1.0]))
    assert gradient.tolist() == [0.5, 0.0]
