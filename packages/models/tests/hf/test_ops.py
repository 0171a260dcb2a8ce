# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_models.tables.ops import Conv, Identity, Interleaved, Lead, Op, Slice, Transpose

IDENTITY = Identity()


def parts(kind, count, axis, then=IDENTITY):
    return [kind(i, count, axis, then) for i in range(count)]


# The ops of all leaves of one tensor.
TENSORS = {
    "identity": [Identity()],
    "transpose": [Transpose()],
    "columns": parts(Slice, 3, -1),
    "rows, transposed": parts(Slice, 2, -2, Transpose()),
    "interleaved": parts(Interleaved, 2, -1),
    "interleaved rows, transposed": parts(Interleaved, 3, -2, Transpose()),
    "nested": [Slice(i, 2, -2, Interleaved(j, 3, -1)) for i in range(2) for j in range(3)],
    "lead": [Lead(2)],
}
STACKABLE = {name: ops for name, ops in TENSORS.items() if name != "lead"}
shapes = st.lists(st.integers(1, 7), min_size=2, max_size=4).map(tuple)


@pytest.mark.parametrize("ops", TENSORS.values(), ids=TENSORS)
@settings(deadline=None)
@given(shape=shapes)
def test_the_leaves_of_a_tensor_tile_it(ops, shape):
    assert all(isinstance(op, Op) for op in ops)
    assert len({op.shape(shape) for op in ops}) == 1
    tensor = np.zeros(ops[0].shape(shape), np.int64)
    for op in ops:
        view = op.view(tensor)
        assert view.shape == shape
        assert np.shares_memory(view, tensor)
        view += 1
    np.testing.assert_array_equal(tensor, 1)


@pytest.mark.parametrize("ops", TENSORS.values(), ids=TENSORS)
@settings(deadline=None)
@given(shape=shapes)
def test_what_is_read_is_written_back(ops, shape):
    size = ops[0].shape(shape)
    tensor = np.random.default_rng(0).standard_normal(size)
    again = np.empty(size)
    for op in ops:
        op.view(again)[...] = op.view(tensor).copy()
    assert again.tobytes() == tensor.tobytes()


@pytest.mark.parametrize("ops", STACKABLE.values(), ids=STACKABLE)
@settings(deadline=None)
@given(shape=shapes.filter(lambda shape: len(shape) > 2))
def test_an_entry_of_a_stack_is_the_op_of_its_tensor(ops, shape):
    tensor = np.random.default_rng(0).standard_normal(ops[0].shape(shape))
    for op in ops:
        stack = np.stack([op.view(one) for one in tensor])
        np.testing.assert_array_equal(op.view(tensor), stack)


def test_transpose_turns_a_linear_of_torch():
    weight = np.arange(6.0).reshape(2, 3)  # [out, in]
    kernel = Transpose().view(weight)
    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_array_equal(
        x @ kernel, [sum(w * v for w, v in zip(r, x, strict=True)) for r in weight]
    )


def test_parts_are_those_of_numpy():
    fused = np.arange(24).reshape(2, 12)
    for i, want in enumerate(np.split(fused, 3, axis=1)):
        np.testing.assert_array_equal(Slice(i, 3, -1).view(fused), want)
    # gate_up[..., ::2] and [..., 1::2], as gpt-oss splits them.
    np.testing.assert_array_equal(Interleaved(1, 2, -1).view(fused), fused[:, 1::2])
    bias = np.arange(6)
    np.testing.assert_array_equal(Slice(1, 2, -1).view(bias), [3, 4, 5])
    assert Slice(1, 2, -1).shape((3,)) == (6,)


def test_conv_is_the_weight_of_a_conv2d():
    weight = np.random.default_rng(0).standard_normal((2, 3, 4, 5))  # [out, in, high, wide]
    kernel = Conv().view(weight)
    assert Conv().shape(kernel.shape) == weight.shape
    assert np.shares_memory(kernel, weight)
    image = np.random.default_rng(1).standard_normal((4, 5, 3))  # [high, wide, in]
    want = [sum(np.sum(w[c] * image[..., c]) for c in range(3)) for w in weight]
    # Sums of 60 float64 products in two orders.
    np.testing.assert_allclose(np.einsum("hwc,hwco->o", image, kernel), want, rtol=1e-12)


@pytest.mark.parametrize("numbers", [(0, 2, 0), (2, 2, -1), (-1, 2, -1)])
@pytest.mark.parametrize("kind", [Slice, Interleaved])
def test_a_part_that_is_none_is_refused(kind, numbers):
    with pytest.raises(ValueError, match="one of the last two axes") as error:
        kind(*numbers)
    i, count, axis = numbers
    assert f"got i={i}, count={count}, axis={axis}" in str(error.value)
    assert "Use axis=-1 or axis=-2, and i from 0" in str(error.value)
