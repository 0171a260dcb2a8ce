# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite for grouped products finds what is wrong, and its own numbers are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.grouped import reference
from dovetail_kernels.testing import grouped as suite

CASES = {case.name: case for case in suite.cases()}


def test_the_gradients_of_the_oracle_are_those_of_differences():
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(shape) for shape in ((6, 3), (2, 3, 4), (6, 4)))
    sizes, step = (4, 1), 1e-6
    exact = suite._products(x, w, g, sizes)
    for name, array in (("dx", x), ("dw", w)):
        for at in np.ndindex(array.shape):
            found = []
            for sign in (1, -1):
                moved = {"dx": x.copy(), "dw": w.copy()}
                moved[name][at] += sign * step
                found.append((suite._products(moved["dx"], moved["dw"], g, sizes)["out"] * g).sum())
            # Linear, so differences are exact but for rounding: eps × 30 terms / step.
            assert abs((found[0] - found[1]) / (2 * step) - exact[name][at]) < 1e-7


def right(x, w, sizes):
    return reference._multiply(x, w, sizes)


def tail_kept(x, w, sizes):
    # Rows beyond the sum are taken for the last group's.
    return right(x, w, sizes.at[-1].add(x.shape[0] - sizes.sum(dtype=jnp.int32)))


def nan_read(x, w, sizes):
    own = right(jnp.ones_like(x), w, sizes) != 0
    return jnp.where(own, right(x, w, sizes), 0) + 0 * x.sum()


@jax.custom_vjp
def wrong_gradient(x, w, sizes):
    return right(x, w, sizes)


wrong_gradient.defvjp(
    lambda x, w, sizes: (right(x, w, sizes), (x, w)),
    lambda saved, g: (jnp.zeros_like(saved[0]), jnp.zeros_like(saved[1]), None),
)


def last_group_lost(x, w, sizes):
    return right(x, w, sizes.at[-1].set(0))


@pytest.mark.parametrize(
    "fn, name, words",
    [
        (lambda x, w, sizes: right(x, w, sizes) + 1e-4, "uneven", "out"),
        (lambda x, w, sizes: right(x, w, sizes).astype(jnp.bfloat16), "uneven", "bfloat16[37, 5]"),
        (lambda x, w, sizes: right(x, w, sizes)[:, :3], "uneven", "float32[37, 3]"),
        (lambda x, w, sizes: right(x, w, jnp.roll(sizes, 1)), "uneven", "out"),
        (last_group_lost, "many rows", "out"),
        (tail_kept, "beyond", "out"),
        (nan_read, "beyond", "nan"),
        (wrong_gradient, "one group", "dx"),
        (right, "negative", "must give NaN"),
    ],
)
def test_what_is_wrong_is_found(fn, name, words):
    with pytest.raises(AssertionError, match=name) as error:
        suite.check(fn, CASES[name])
    assert words in str(error.value)


def test_without_gradients_only_values_are_checked():
    suite.check(wrong_gradient, CASES["one group"], grad=False)


@pytest.mark.thorough
def test_refusing_is_allowed_where_it_is_said_and_only_there():
    def fn(x, w, sizes):
        if x.dtype != jnp.float32:
            raise NotImplementedError(str(x.dtype))
        wrong = jnp.any(sizes < 0) | (sizes.sum(dtype=jnp.int32) > x.shape[0])
        return jnp.where(wrong, jnp.nan, right(x, w, sizes))

    suite.check_grouped_matmul(fn, supports={"beyond", "wrong", "vmap"}, grad=False)
    with pytest.raises(AssertionError, match=r"bfloat16: needs .* refused: NotImplementedError"):
        suite.check_grouped_matmul(fn, supports={"bfloat16", "wrong"}, grad=False)
    # Not said to be supported, and neither right nor refused.
    with pytest.raises(AssertionError, match=r"negative: .*must give NaN"):
        suite.check_grouped_matmul(right, supports=set(), grad=False)


def test_an_unknown_feature():
    with pytest.raises(ValueError, match=r"supports must be among \['beyond'.*got \['packed'\]"):
        suite.check_grouped_matmul(right, supports={"packed"})
