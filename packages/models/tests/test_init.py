# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_models import init, llama

CONFIG = llama(
    vocab_size=301, embed=64, depth=3, heads=4, kv_heads=2, mlp=96,
    attention_bias=True, init_std=0.03,
)  # fmt: skip


@pytest.fixture(scope="module")
def fresh(leaves):
    return leaves(init(CONFIG, seed=4))


def test_matrices_are_normal_and_the_rest_neutral(fresh):
    for name, leaf in fresh.items():
        assert leaf.dtype == np.float32
        if name.endswith("scale"):
            np.testing.assert_array_equal(leaf, 1.0)
        elif name.endswith("bias"):
            np.testing.assert_array_equal(leaf, 0.0)
        else:
            # The sample deviation of n normals is off by 1/sqrt(2n): five of those.
            assert leaf.std() == pytest.approx(0.03, rel=5 / np.sqrt(2 * leaf.size))
            assert abs(leaf.mean()) < 5 * 0.03 / np.sqrt(leaf.size)


def test_no_two_leaves_share_their_numbers(fresh):
    corners = [leaf.ravel()[:8].tobytes() for name, leaf in fresh.items() if "kernel" in name]
    assert len(set(corners)) == len(corners) == 3 * 7 + 1


def test_the_seed_alone_decides(fresh, leaves):
    again, other = leaves(init(CONFIG, seed=4)), leaves(init(CONFIG, seed=5))
    assert all(np.array_equal(fresh[name], again[name]) for name in fresh)
    assert not any(np.array_equal(fresh[n], other[n]) for n in fresh if "kernel" in n)
