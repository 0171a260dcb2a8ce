# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random chains of operations, done on pieces and by NumPy on the arrays themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint.layout import pieces
from dovetail_checkpoint.layout.pieces import Built, Piece

_RNG = np.random.default_rng(0)
ARRAYS = {name: _RNG.normal(size=(2, 3, 4)).astype(np.float32) for name in "abcdef"}


def assemble(built: Built) -> np.ndarray:
    """The values, and a check that the pieces cover each element once."""
    result, covered = np.empty(built.shape, built.dtype), np.zeros(built.shape, int)
    for piece in built.pieces:
        result[piece.place] = pieces.block(ARRAYS[piece.source], piece)
        covered[piece.place] += 1
    assert (covered == 1).all()
    return result


def source(name: str) -> tuple[Built, np.ndarray]:
    return pieces.whole(name, (2, 3, 4), "float32"), ARRAYS[name]


def chain(draw):
    """A leaf after up to six operations, and the array that NumPy makes of it."""
    names = iter("abcdef")
    leaf, array = source(next(names))
    for _ in range(draw(st.integers(0, 6))):
        axis = draw(st.integers(0, array.ndim - 1))
        match draw(st.sampled_from(["stack", "join", "slice", "unstack", "transpose", "convert"])):
            case "stack":  # with itself turned round along an axis: other values, same shape
                half = array.shape[axis] // 2
                other = pieces.joined(
                    [
                        pieces.sliced(leaf, axis, half, array.shape[axis]),
                        pieces.sliced(leaf, axis, 0, half),
                    ],
                    axis,
                )
                leaf = pieces.stacked([leaf, other], axis)
                array = np.stack([array, np.roll(array, -half, axis)], axis)
            case "join" if array.shape == (2, 3, 4) and (name := next(names, None)):
                other, more = source(name)
                leaf = pieces.joined([leaf, pieces.converted(other, leaf.dtype)], axis)
                array = np.concatenate([array, more.astype(array.dtype)], axis)
            case "slice":
                start = draw(st.integers(0, array.shape[axis] - 1))
                stop = draw(st.integers(start + 1, array.shape[axis]))
                leaf = pieces.sliced(leaf, axis, start, stop)
                array = np.take(array, range(start, stop), axis)
            case "unstack" if array.ndim > 1:
                i = draw(st.integers(0, array.shape[axis] - 1))
                leaf, array = pieces.unstacked(leaf, axis)[i], np.take(array, i, axis)
            case "transpose":
                axes = draw(st.permutations(range(array.ndim)))
                leaf, array = pieces.transposed(leaf, axes), array.transpose(axes)
            case "convert":
                dtype = draw(st.sampled_from(["float16", "float32"]))
                leaf, array = pieces.converted(leaf, dtype), array.astype(dtype)
    return leaf, array


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_chain_of_operations_is_what_numpy_makes_of_the_arrays(data):
    leaf, array = chain(data.draw)
    found = assemble(leaf)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_stacks_of_stacks_come_apart_again():
    leaves = [source(name)[0] for name in "abcd"]
    pair = [pieces.stacked(leaves[:2], 1), pieces.stacked(leaves[2:], 1)]
    both = pieces.stacked(pair, -1 % 5)
    apart = [x for half in pieces.unstacked(both, 4) for x in pieces.unstacked(half, 1)]
    assert apart == leaves


def test_two_casts_round_twice():
    twice = pieces.converted(pieces.converted(source("a")[0], "bfloat16"), "float32")
    assert twice.pieces[0].casts == ("bfloat16", "float32")
    assert pieces.converted(twice, "float32") == twice


def test_a_scalar_stacks():
    scalars = [pieces.whole(name, (), "float32") for name in "ab"]
    both = pieces.stacked(scalars, 0)
    assert both.shape == (2,)
    assert [piece.place for piece in both.pieces] == [(slice(0, 1),), (slice(1, 2),)]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_leaves_without_elements_keep_their_shape(shape):
    leaf = pieces.whole("a", shape, "float32")
    assert pieces.stacked([leaf, leaf], 0).shape == (2, *shape)
    assert pieces.transposed(leaf, (1, 0)).shape == shape[::-1]


def test_a_piece_says_where_it_is_cut_and_where_it_lies():
    piece = Piece(source="a", region=((1, 3), (0, 4)), axes=(1, None, 0), offset=(2, 5, 0))
    assert piece.extent == (4, 1, 2)
    assert piece.slices == (slice(1, 3), slice(0, 4))
    assert piece.place == (slice(2, 6), slice(5, 6), slice(0, 2))
