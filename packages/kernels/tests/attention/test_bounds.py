# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""No visible pair is left out; where values are sorted, blocks without one are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.arrays import Cut, cut
from dovetail_kernels.attention import pairwise
from dovetail_kernels.attention.bounds import bounds, visible, visible_pairs, visits
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.plan import plan_attention


def mask_of(t, s, *, causal, window, segments, positions, lengths, mask=None):
    """[b, t, s] in NumPy, by the definition."""
    query, key = positions or (np.arange(t)[None], np.arange(s)[None])
    ahead = query[:, :, None] - key[:, None, :]
    see = np.ones((2, t, s), bool)
    if causal:
        see &= ahead >= 0
    if window is not None:
        before, after = window if isinstance(window, tuple) else (window - 1, window - 1)
        see &= (ahead <= before) & (ahead >= -after)
    if segments is not None:
        see &= segments[0][:, :, None] == segments[1][:, None, :]
    if lengths is not None:
        see &= np.arange(s)[None, None] < lengths[:, None, None]
    return see if mask is None else see & mask[:, 0]


def bounds_of(t, s, queries, keys, *, causal, window, segments, positions, lengths, mask=None):
    shape = [jax.ShapeDtypeStruct((2, x, 1, 1), jnp.float32) for x in (t, s)]
    call = plan_attention(
        shape[0],
        shape[1],
        shape[1],
        causal=causal,
        window=window,
        segment_ids=segments,
        positions=positions,
        kv_lengths=lengths,
        mask=mask,
    ).call
    inputs = Inputs(
        *[jnp.zeros(x.shape) for x in (shape[0], shape[1], shape[1])],
        segment_ids=segments and tuple(map(jnp.asarray, segments)),
        positions=positions and tuple(map(jnp.asarray, positions)),
        kv_lengths=None if lengths is None else jnp.asarray(lengths),
        mask=None if mask is None else jnp.asarray(mask),
    )
    return call, bounds(call, inputs, queries, keys)


def blocks_of(see, queries, keys):
    """[b, t, s] to [nq, b, nk, bq, bk], and which of it is filling."""
    b, t, s = see.shape
    padding = (0, 0), (0, queries.size * queries.blocks - t), (0, keys.size * keys.blocks - s)
    see = np.pad(see, padding)
    see = see.reshape(b, queries.blocks, queries.size, keys.blocks, keys.size)
    return see.transpose(1, 0, 3, 2, 4)


def holds(t, s, size, **conditions):
    queries, keys = cut(t, size), cut(s, size)
    call, at = bounds_of(t, s, queries, keys, **conditions)
    expected = blocks_of(mask_of(t, s, **conditions), queries, keys)
    real = blocks_of(np.ones((2, t, s), bool), queries, keys)
    ids, whole, some = (np.asarray(x) for x in at.visits[1:4])
    ids = np.broadcast_to(ids, (queries.blocks, 2, keys.blocks))
    whole, some = (np.broadcast_to(x, ids.shape[:2]) for x in (whole, some))
    for i in range(queries.blocks):
        visit = jax.tree.map(lambda x, i=i: x[i], at.visits)
        for row in range(2):
            assert sorted(ids[i, row]) == list(range(keys.blocks))
            first, left = ids[i, row, : whole[i, row]], ids[i, row, some[i, row] :]
            assert not expected[i, row, left].any(), "a visible pair is left out"
            assert (expected | ~real)[i, row, first].all(), "not whole"
        # The mask of each visited block, as the loops ask for it; rows visit in step.
        for n in range(whole[i].min(), some[i].max()):
            mask = np.asarray(visible(call, at, visit, jnp.int32(n)))[:, 0, 0]
            for row in np.flatnonzero((whole[i] <= n) & (n < some[i])):
                block, counts = (x[i, row, ids[i, row, n]] for x in (expected, real))
                found = np.broadcast_to(mask, (2, *block.shape))[row]
                np.testing.assert_array_equal(found[counts.any(1)], block[counts.any(1)])
    return at


@st.composite
def conditions(draw):
    # Few lengths, since each is compiled for: one block, whole ones, and filling on either side.
    t, s = draw(st.sampled_from([(7, 7), (32, 32), (21, 30)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    ordered = draw(st.booleans())

    def ids(high):
        found = [rng.integers(-2, high, (2, n)).astype(np.int32) for n in (t, s)]
        return tuple(np.sort(x, 1) for x in found) if ordered else tuple(found)

    pairs = st.tuples(st.integers(0, 30), st.integers(0, 30))
    causal, window = draw(st.booleans()), draw(st.none() | st.integers(1, 50) | pairs)
    given_positions = t != s or draw(st.booleans())
    return {
        "t": t,
        "s": s,
        "size": 8,
        "causal": causal,
        "window": window,
        "segments": ids(4) if draw(st.booleans()) else None,
        "positions": ids(40) if given_positions else None,
        "lengths": rng.integers(0, s + 1, 2).astype(np.int32) if draw(st.booleans()) else None,
        "mask": rng.random((draw(st.sampled_from([1, 2])), 1, 1, s)) < 0.7
        if draw(st.booleans())
        else None,
    }


@pytest.mark.thorough
@settings(deadline=None, max_examples=15, derandomize=True)
@given(conditions())
def test_nothing_visible_is_left_out(conditions):
    holds(**conditions)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_that_a_window_cuts_are_not_whole(causal):
    for window in (1, 8, 10, 17):
        at = holds(32, 32, 8, **NONE | {"causal": causal, "window": window})
        # The block of the same positions spans 7, the one before it 15.
        assert (np.asarray(at.visits.whole).sum() > 0) == (window > (15 if causal else 7))


NONE = {"causal": False, "window": None, "segments": None, "positions": None, "lengths": None}


@pytest.mark.thorough
def test_packed_rows_visit_only_their_own_segments():
    """Four segments of two blocks each: three blocks per segment under causal, of 36 of the row."""
    segments = np.tile(np.repeat(np.arange(4), 16), (2, 1)).astype(np.int32)
    at = holds(64, 64, 8, **NONE | {"causal": True, "segments": (segments, segments)})
    assert np.asarray(at.visits.some).sum() == 2 * 4 * 3
    assert np.asarray(at.visits.whole).sum() == 2 * 4


@pytest.mark.thorough
def test_a_mask_leaves_out_blocks_that_it_hides_from_every_head():
    mask = np.zeros((1, 1, 64, 64), bool)
    mask[:, :, :, 8:16] = mask[:, :, 40:, 20:30] = True
    at = holds(64, 64, 8, **NONE | {"mask": mask})
    np.testing.assert_array_equal(at.visits.some[:, 0], [1] * 5 + [3] * 3)
    np.testing.assert_array_equal(at.visits.whole[:, 0], [1] * 8)
    heads = np.zeros((2, 3, 9, 9), bool)
    heads[:, 1] = True
    shown, all_shown = pairwise.summary(jnp.asarray(heads), Cut(9, 1), Cut(9, 1))
    assert shown.all()
    assert not all_shown.any()


@pytest.mark.thorough
def test_holes_are_not_visited():
    """Early and late part of a row on one device, as balanced ring attention deals them out."""
    query = np.tile(np.r_[0:16, 112:128], (2, 1)).astype(np.int32)
    key = np.tile(np.r_[32:48, 80:96], (2, 1)).astype(np.int32)
    at = holds(32, 32, 16, **NONE | {"causal": True, "positions": (query, key)})
    np.testing.assert_array_equal(at.visits.some, [[0, 0], [2, 2]])
    np.testing.assert_array_equal(at.visits.whole, [[0, 0], [2, 2]])


@pytest.mark.thorough
def test_extreme_segments_do_not_overflow():
    ids = np.full((2, 9), np.iinfo(np.int32).min, np.int32)
    ids[:, 5:] = np.iinfo(np.int32).max
    holds(9, 9, 8, **NONE | {"segments": (ids, ids)})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 9, 70, (0, 20), (30, 5)])
@pytest.mark.parametrize("t", [5, 64, 67])
def test_visits_are_counted_without_arrays(t, causal, window):
    queries, keys = cut(t, 8), cut(t, 16)
    conditions = NONE | {"causal": causal, "window": window}
    call, at = bounds_of(t, t, queries, keys, **conditions)
    assert visits(call, queries, keys) == int(at.visits.some.sum())
    known = dataclasses.replace(call, positions=True)
    assert visits(known, queries, keys) == queries.blocks * keys.blocks


@pytest.mark.parametrize("causal, window", [(True, None), (True, 5), (False, (2, 7)), (False, 40)])
def test_visible_pairs_are_those_of_the_mask(causal, window):
    t = 23
    conditions = {"causal": causal, "window": window, "segments": None, "lengths": None}
    call, _ = bounds_of(t, t, cut(t, 8), cut(t, 8), positions=None, **conditions)
    assert visible_pairs(call) == mask_of(t, t, positions=None, **conditions)[0].sum()
    # As many positions as keys count in order, others as if each key were visible.
    for queries, expected in ((t, visible_pairs(call)), (t - 4, (t - 4) * t)):
        positions = np.zeros((2, queries), np.int32), np.zeros((2, t), np.int32)
        blocks = cut(queries, 8), cut(t, 8)
        given, _ = bounds_of(queries, t, *blocks, positions=positions, **conditions)
        assert visible_pairs(given) == expected
