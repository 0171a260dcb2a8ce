# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_models.hf.ops import Identity, Op, Transpose

OPS = [Identity(), Transpose()]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
@given(st.data())
def test_a_slice_of_the_leaf_is_a_view_of_the_tensor(op, data):
    assert isinstance(op, Op)
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 7)))
    leaf = np.random.default_rng(0).standard_normal(shape)
    tensor = np.ascontiguousarray(op.write(leaf))
    assert tensor.shape == op.shape(shape)
    index = tuple(data.draw(st.slices(size)) for size in shape)
    part = op.read(tensor, index)
    np.testing.assert_array_equal(part, leaf[index])
    assert part.size == 0 or np.shares_memory(part, tensor)


def test_transpose_turns_a_linear_of_torch():
    weight = np.arange(6.0).reshape(2, 3)  # [out, in]
    kernel = Transpose().read(weight, (slice(None), slice(None)))
    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_array_equal(
        x @ kernel, [sum(w * v for w, v in zip(r, x, strict=True)) for r in weight]
    )
