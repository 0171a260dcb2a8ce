# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.cudnn.runs import OTHER, RISING, SOME_FLAT, find_runs

POSITIONS = {
    "rising with gaps": ([0, 2, 9, 0, 5, 6], RISING),
    "equal in a whole run": ([0, 1, 2, 4, 4, 4], SOME_FLAT),
    "equal in a part": ([0, 1, 1, 0, 1, 2], OTHER),
    "falling": ([2, 1, 0, 0, 1, 2], OTHER),
    "equal at first": ([0, 0, 1, 0, 1, 2], OTHER),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_that_runs_can_stand_for(name):
    places, kind = POSITIONS[name]
    ids = jnp.asarray([[1, 1, 1, 2, 2, 2]])
    pair = (jnp.asarray([places]),) * 2
    x = jnp.zeros((1, 6, 1, 1))
    inputs = Inputs(x, x, x, segment_ids=(ids, ids), positions=pair)
    assert find_runs(inputs, causal=True, rows=1, most=2).kind == kind
    assert find_runs(inputs, causal=False, rows=1, most=2).kind == RISING
    other = inputs._replace(positions=(pair[0], pair[0] + 1))
    assert find_runs(other, causal=True, rows=1, most=2).kind == OTHER
    other = inputs._replace(segment_ids=(ids, ids + 1))
    assert find_runs(other, causal=True, rows=1, most=2).kind == OTHER


def test_runs_of_slices():
    lengths = [3, 1, 4], [8], [1, 7], [2, 6]
    ids = jnp.asarray(np.stack([np.repeat(np.arange(len(n)), n) for n in lengths]))
    x = jnp.zeros((4, 8, 1, 1))
    runs = find_runs(Inputs(x, x, x, segment_ids=(ids, ids)), causal=True, rows=2, most=3)
    assert runs.starts.tolist() == [[0, 3, 4, 8, *[16] * 4], [0, 1, 8, 10, *[16] * 4]]
    assert runs.lengths.tolist() == [[3, 1, 4, 8, 0, 0], [1, 7, 2, 6, 0, 0]]
    assert runs.kind == RISING
    many = find_runs(Inputs(x, x, x, segment_ids=(ids, ids)), causal=True, rows=1, most=2)
    assert many.kind == OTHER  # three runs in the first row
