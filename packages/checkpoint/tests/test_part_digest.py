# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint.proof import part_digest
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.part_digest import part_sums

M = 0xFFFFFFFF


def mixed(word: int, position: int) -> tuple[int, int]:
    """x and y of digest.py in Python's integers."""
    key = position * 0x9E3779B9 & M
    x = word ^ key ^ (key >> 15)
    x = (x ^ x >> 16) * 0x85EBCA6B & M
    x = (x ^ x >> 13) * 0xC2B2AE35 & M
    x ^= x >> 16
    y = (x ^ (x << 7 & M)) * 0x27D4EB2F & M
    return x, y ^ y >> 15


def as_hex(sums) -> str:
    return "".join(f"{int(value) & M:08x}" for value in sums)


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(3).normal(size=shape) * 5
    return np.asarray(np.asarray(values, np.float64), jnp.dtype(dtype))


def test_each_word_is_mixed_with_its_position():
    part = np.array([[7, 8], [9, 10]], np.uint32)
    want = [mixed(7, 22), mixed(8, 23), mixed(9, 33), mixed(10, 34)]  # rows of 11 from (2, 0) on
    sums = map(sum, zip(*want, strict=True))
    assert as_hex(part_sums(part, offset=(2, 0), shape=(4, 11))) == as_hex(sums)


def test_positions_go_beyond_32_bits():
    part = np.array([[7, 8]], np.uint32)
    first = (2**31 * 3 + 1) % 2**32
    want = [mixed(7, first), mixed(8, first + 1)]
    assert as_hex(part_sums(part, offset=(2**31, 1), shape=(2**33, 3))) == as_hex(
        map(sum, zip(*want, strict=True))
    )


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_parts_add_up_to_the_digest(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=4)))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "float64", "int4"]))
    array = random_array(dtype, shape)
    parts = [((0,) * len(shape), shape)]
    for axis in data.draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), max_size=4)):
        if shape:
            parts = [half for part in parts for half in halves(part, axis, data)]
    total = np.zeros(2, np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_digest, "_WORDS", data.draw(st.sampled_from([1, 4, 1 << 13])))
        for offset, extent in parts:
            place = tuple(slice(o, o + n) for o, n in zip(offset, extent, strict=True))
            total += part_sums(np.asarray(array[place]), offset=offset, shape=shape)
    assert as_hex(total) == hex_digests([array])[0]


def halves(part, axis, data):
    offset, extent = part
    cut = data.draw(st.integers(0, extent[axis]))
    yield offset, (*extent[:axis], cut, *extent[axis + 1 :])
    moved = (*offset[:axis], offset[axis] + cut, *offset[axis + 1 :])
    yield moved, (*extent[:axis], extent[axis] - cut, *extent[axis + 1 :])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_long_runs_add_up_too(axis):
    array = random_array("bfloat16", (3, 5, 40_001))
    size = array.shape[axis] // 2
    first, rest = np.split(array, [size], axis=axis)
    offset = tuple(size if i == axis else 0 for i in range(3))
    total = part_sums(first, offset=(0, 0, 0), shape=array.shape)
    total = total + part_sums(rest, offset=offset, shape=array.shape)
    assert as_hex(total) == hex_digests([array])[0]
