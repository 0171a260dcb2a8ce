# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is stacked with what and how much at a time; on eight devices, in a program of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_optim.matrix.exchange import check_where, map_whole
from dovetail_optim.matrix.matrix import parse

SHAPES = [(4, 3), (3, 4), (2, 4, 3), (4, 3), (5, 3, 4), (3, 5, 4)]
TEXTS = ["i o -> , i, o"] * 2 + ["l i o -> l, i, o", "i o -> , i, o"] + ["l i o -> l, i, o"] * 2
RNG = np.random.default_rng(0)
ARRAYS = [jnp.asarray(RNG.standard_normal(shape), jnp.float32) for shape in SHAPES]
MATRICES = [parse(text) for text in TEXTS]


def seen(arrays, matrices, **settings):
    """The results of an operation that tells matrices apart, and the stacks that it saw."""
    stacks = []

    def work(stack):
        stacks.append(stack.shape)
        return jnp.cumsum(stack * stack[:, :1, :1], axis=1)

    return map_whole(work, arrays, matrices, dtype=jnp.float32, **settings), stacks


def expected(x):
    x = np.asarray(x, np.float64)
    return np.cumsum(x * x[..., :1, :1], axis=-2)


@pytest.mark.thorough
def test_equal_shapes_of_all_leaves_are_one_stack():
    found, stacks = seen(ARRAYS, MATRICES)
    assert stacks == [(4, 4, 3), (6, 3, 4), (3, 5, 4)]
    for got, x in zip(found, ARRAYS, strict=True):
        np.testing.assert_allclose(got, expected(x), rtol=1e-5, atol=1e-5)


def test_chunks_are_bounded_and_alike():
    found, stacks = seen(ARRAYS, MATRICES, chunk_bytes=5 * 12 * 4)
    # Of six matrices twice three, not five and one; the work is traced once for all chunks alike.
    assert stacks == [(4, 4, 3), (3, 3, 4), (3, 5, 4)]
    for got, x in zip(found, ARRAYS, strict=True):
        np.testing.assert_allclose(got, expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@settings(deadline=None, max_examples=8, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 6))
def test_any_lengths_in_any_chunks(lengths, room):
    rng = np.random.default_rng(1)
    arrays = [jnp.asarray(rng.standard_normal((n, 2, 3)), jnp.float32) for n in lengths]
    found, stacks = seen(arrays, [MATRICES[2]] * len(lengths), chunk_bytes=room * 24)
    ((count, _, _),) = stacks
    assert count == -(-sum(lengths) // -(-sum(lengths) // room))
    for got, x in zip(found, arrays, strict=True):
        np.testing.assert_allclose(got, expected(x), rtol=1e-5, atol=1e-5)


def test_chunks_one_after_the_other_need_less_at_a_time():
    x = [jax.ShapeDtypeStruct((8, 64, 64), jnp.float32)]

    def work(stack):
        wide = jnp.concatenate([stack] * 8, axis=2)
        return wide @ wide.mT @ stack

    def temp_bytes(chunk_bytes):
        def call(x):
            return map_whole(work, x, MATRICES[2:3], dtype=jnp.float32, chunk_bytes=chunk_bytes)

        return jax.jit(call).lower(x).compile().memory_analysis().temp_size_in_bytes

    stack_bytes = 8 * 64 * 64 * 4
    assert temp_bytes(2**20) > 8 * stack_bytes
    # An eighth of that, the results, and what the loop keeps.
    assert temp_bytes(1) < 4 * stack_bytes


def test_nothing_to_do():
    assert seen([], []) == ([], [])


def test_results_have_the_dtype_of_the_work():
    found = map_whole(lambda s: s, ARRAYS[:1], MATRICES[:1], dtype=jnp.bfloat16)
    assert found[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("where, got", [("all", "'all'"), ({"a": 3}, "3"), (None, "0 shardings")])
def test_where_is_refused(where, got):
    with pytest.raises(ValueError, match=r"exchange must be 'auto', 'local', or a pytree") as error:
        check_where(where, 2)
    assert f"got {got}" in str(error.value)
    assert str(error.value).endswith("write exchange=jax.tree.map(lambda p: p.sharding, params)")


def test_shardings_for_each_array():
    sharding = NamedSharding(jax.make_mesh((1,), ("x",)), PartitionSpec())
    with pytest.raises(ValueError, match=r"each of the 2 parameters; got 1 shardings"):
        map_whole(lambda s: s, ARRAYS[:2], MATRICES[:2], where=[sharding])
    found, _ = seen(ARRAYS[:1], MATRICES[:1], where=[sharding])
    np.testing.assert_allclose(found[0], expected(ARRAYS[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("Muon's matrices exchanged between eight devices")
@pytest.mark.parametrize("mesh", ["explicit", pytest.param("auto", marks=pytest.mark.slow)])
def test_on_eight_devices(mesh, on_eight_devices):
    on_eight_devices("muon_sharded.py", mesh)
