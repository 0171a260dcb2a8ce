# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_tune.chunks import map_positions, map_rows


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 3), length=st.integers(1, 17), chunk=st.integers(1, 60))
def test_positions_come_back_in_order(rows, length, chunk):
    x = jnp.arange(rows * length * 2.0).reshape(rows, length, 2)
    y, first = map_positions(lambda x: (2 * x, x[..., 0]), (x,), chunk=chunk)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(first, x[..., 0])


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(groups=st.integers(1, 6), chunks=st.integers(1, 4), group=st.integers(1, 3))
def test_rows_come_back_in_order(groups, chunks, group):
    rows = groups * chunks * group
    x = {"x": jnp.arange(rows * 2.0).reshape(rows, 2)}

    def function(batch):
        assert batch["x"].shape[0] == rows // chunks
        by_group = batch["x"].reshape(-1, group, 2)
        return batch["x"] + 1, by_group.sum(1)

    by_row, by_group = map_rows(function, x, chunks=chunks, group=group)
    np.testing.assert_array_equal(by_row, x["x"] + 1)
    np.testing.assert_array_equal(by_group, x["x"].reshape(-1, group, 2).sum(1))


@pytest.mark.thorough
def test_the_backward_pass_holds_one_chunk():
    w = jnp.eye(64)

    def temporaries(chunks: int) -> int:
        def deep(x):
            for _ in range(20):
                x = jnp.tanh(x @ w)
            return x

        def total(x):
            return map_rows(deep, x, chunks=chunks).sum()

        compiled = jax.jit(jax.grad(total)).lower(jnp.ones((1024, 64))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # 20 activations of [1024, 64] against those of [64, 64], and the stacked inputs and results.
    assert temporaries(16) < temporaries(1) / 3


@pytest.mark.thorough
def test_gradients_do_not_depend_on_chunks():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(12, 3)), rng.normal(size=(3, 3))

    def total(w, chunks):
        return (map_rows(lambda x: jnp.tanh(x @ w), jnp.asarray(x), chunks=chunks) ** 3).sum()

    whole = jax.grad(total)(jnp.asarray(w), 1)
    for chunks in (2, 3, 12):
        # Sums of 12 float32 in another order.
        np.testing.assert_allclose(jax.grad(total)(jnp.asarray(w), chunks), whole, rtol=2e-5)


@pytest.mark.parametrize(("rows", "chunks", "group"), [(6, 4, 1), (6, 2, 2), (6, 0, 1)])
def test_chunks_that_split_a_group_are_refused(rows, chunks, group):
    with pytest.raises(ValueError, match=rf"rows={rows}, chunks={chunks}; pass a divisor of"):
        map_rows(lambda x: x, jnp.zeros((rows, 1)), chunks=chunks, group=group)
