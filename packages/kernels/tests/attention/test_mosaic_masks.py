# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.mosaic_masks import masks
from dovetail_kernels.attention.plan import plan_attention

pytestmark = pytest.mark.thorough

# Of 8, not 128 as in the kernel: more blocks from fewer queries.
_SIZE = 8


def _found(batch, queries, keys, **options):
    def zeros(length):
        return jnp.zeros((batch, length, 1, 1))

    options = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, options)
    pairs = {name: options.get(name) for name in ("segment_ids", "positions", "kv_lengths")}
    call = plan_attention(zeros(queries), zeros(keys), zeros(keys), **options).call
    inputs = Inputs(zeros(queries), zeros(keys), zeros(keys), **pairs)
    cuts = (Cut(_SIZE, -(-length // _SIZE)) for length in (queries, keys))
    return jax.tree.map(np.asarray, masks(call, inputs, *cuts))


def _seen_by_masks(found):
    """[B, T, S] of whole blocks, as the kernel decides it; what is not read is not seen."""
    low, high, position = found.q_low[:, :, None], found.q_high[:, :, None], found.k_position
    compared = (low <= position[:, None, :]) & (position[:, None, :] <= high)
    if found.q_segment is not None:
        compared &= found.q_segment[:, :, None] == found.k_segment[:, None, :]
    seen = np.zeros_like(compared)
    for b, i in np.ndindex(found.some.shape):
        for n, block in enumerate(found.blocks[b, i, : found.some[b, i]]):
            rows, columns = (slice(x * _SIZE, (x + 1) * _SIZE) for x in (i, block))
            seen[b, rows, columns] = n < found.whole[b, i] or compared[b, rows, columns]
    return seen


def _seen(batch, queries, keys, *, causal=False, window=None, **pairs):
    """[B, T, S] by the definition of `attention`."""
    default = np.arange(queries)[None], np.arange(keys)[None]
    q_position, k_position = (np.int64(x) for x in pairs.get("positions", default))
    ahead = q_position[:, :, None] - k_position[:, None, :]
    seen = np.ones((batch, queries, keys), bool)
    if causal:
        seen &= ahead >= 0
    if window is not None:
        before, after = window if isinstance(window, tuple) else (window - 1, window - 1)
        seen &= (-after <= ahead) & (ahead <= before)
    if "segment_ids" in pairs:
        q_segment, k_segment = pairs["segment_ids"]
        seen &= q_segment[:, :, None] == k_segment[:, None, :]
    if "kv_lengths" in pairs:
        seen &= np.arange(keys) < pairs["kv_lengths"][:, None, None]
    return seen


@st.composite
def _calls(draw):
    # One shape: each compiles anew.
    batch, queries, keys = 2, 29, 20
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 1, 5, 2**31 - 1, (4, 9), (0, 2**31)])),
    }

    def pair(low, high, ordered):
        drawn = [rng.integers(low, high, (batch, n), np.int32) for n in (queries, keys)]
        return tuple(np.sort(x, 1) if ordered else x for x in drawn)

    if draw(st.booleans()) or options["causal"] or options["window"]:
        low, high = draw(st.sampled_from([(0, 30), (-(2**30), 2**30)]))
        options["positions"] = pair(low, high, draw(st.booleans()))
    if draw(st.booleans()):
        options["segment_ids"] = pair(-1, 3, draw(st.booleans()))
    if draw(st.booleans()):
        options["kv_lengths"] = rng.integers(0, keys + 1, batch).astype(np.int32)
    return (batch, queries, keys), options


@settings(deadline=None, max_examples=50, derandomize=True)
@given(_calls())
def test_a_query_sees_what_the_call_says(drawn):
    (batch, queries, keys), options = drawn
    seen = _seen_by_masks(_found(batch, queries, keys, **options))
    expected = np.zeros_like(seen)
    expected[:, :queries, :keys] = _seen(batch, queries, keys, **options)
    # Of queries that only fill up nothing is kept.
    np.testing.assert_array_equal(seen[:, :queries], expected[:, :queries])


@pytest.mark.parametrize("extreme", [-(2**31), 2**31 - 1 - 40])
def test_positions_at_the_ends_of_int32(extreme):
    positions = (np.arange(20, dtype=np.int32) + np.int32(extreme))[None]
    options = {"causal": True, "window": 2**31 - 1, "positions": (positions, positions)}
    seen = _seen_by_masks(_found(1, 20, 20, **options))
    np.testing.assert_array_equal(seen[:, :20, :20], _seen(1, 20, 20, **options))


def test_blocks_that_are_seen_entirely_are_not_compared():
    segments = np.repeat(np.arange(2, dtype=np.int32), 16)[None]
    found = _found(1, 32, 32, causal=True, segment_ids=(segments, segments))
    assert [list(row[:n]) for row, n in zip(found.blocks[0], found.some[0], strict=True)] == [
        [0],
        [0, 1],
        [2],
        [2, 3],
    ]
    assert list(found.whole[0]) == [0, 1, 0, 1]


def test_masks_are_int32_under_x64():
    with jax.enable_x64(True):
        positions = np.arange(20)[None] + 10**12
        # Their lower halves are equal.
        segments = 2**32 * (np.arange(20)[None] // 6)
        pairs = {"positions": (positions, positions), "segment_ids": (segments, segments)}
        options = {"causal": True} | pairs
        found = _found(1, 20, 20, kv_lengths=np.array([15]), **options)
        assert {x.dtype for x in found if x is not None} == {np.dtype(np.int32)}
        seen = _seen_by_masks(found)
    expected = _seen(1, 20, 20, kv_lengths=np.array([15]), **options)
    np.testing.assert_array_equal(seen[:, :20, :20], expected)
