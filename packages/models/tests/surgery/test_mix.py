# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each rule against its paper, written again in NumPy float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models.surgery import mix

pytestmark = pytest.mark.capability("merging of models")

RNG = np.random.default_rng(6)
BASE, *LEAVES = (RNG.standard_normal((7, 9)).astype(np.float32) for _ in range(4))
WEIGHTS = np.array([0.5, 1.25, 0.75], np.float32)
ARRAYS = [jnp.asarray(leaf) for leaf in LEAVES]


def close(got, want):
    # A handful of float32 roundings of numbers up to 8.
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


@pytest.mark.thorough
def test_linear_is_the_weighted_mean():
    want = np.average(np.stack(LEAVES).astype(np.float64), axis=0, weights=WEIGHTS)
    close(mix.linear(ARRAYS, jnp.asarray(WEIGHTS)), want)


def test_slerp_keeps_to_the_arc():
    a, b = (leaf.astype(np.float64).ravel() for leaf in LEAVES[:2])
    b *= np.linalg.norm(a) / np.linalg.norm(b)
    leaves = [jnp.asarray(x.reshape(7, 9), jnp.float32) for x in (a, b)]
    got = np.asarray(mix.slerp(leaves, jnp.asarray([3.0, 1.0])), np.float64).ravel()

    def angle(x, y):
        return math.acos(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    # On the arc of a circle, a quarter of the way, in the plane of the two: nothing else is there.
    np.testing.assert_allclose(np.linalg.norm(got), np.linalg.norm(a), rtol=1e-6)
    np.testing.assert_allclose(angle(a, got), angle(a, b) / 4, rtol=1e-5)
    np.testing.assert_allclose(angle(got, b), angle(a, b) * 3 / 4, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("factor", [2.0, -1.5, 0.0])
def test_slerp_of_parallel_vectors_is_a_line(factor):
    leaves = [ARRAYS[0], factor * ARRAYS[0]]
    want = LEAVES[0].astype(np.float64) * (0.75 + 0.25 * factor)
    close(mix.slerp(leaves, jnp.asarray([3.0, 1.0])), want)


def task_vectors():
    return [leaf.astype(np.float64) - BASE for leaf in LEAVES]


def elected(changes):
    """The merge of TIES from its text: (sum of those that agree, sum of their weights)."""
    total, mass = np.zeros(BASE.shape), np.zeros(BASE.shape)
    for at in np.ndindex(BASE.shape):
        here = [change[at] for change in changes]
        sign = 1 if sum(w * c for w, c in zip(WEIGHTS, here, strict=True)) >= 0 else -1
        for w, c in zip(WEIGHTS, here, strict=True):
            if c * sign > 0:
                total[at] += w * c
                mass[at] += w
    return total, mass


def test_task_vectors_are_added():
    want = BASE + sum(w * change for w, change in zip(WEIGHTS, task_vectors(), strict=True))
    close(mix.task_arithmetic(ARRAYS, jnp.asarray(WEIGHTS), base=jnp.asarray(BASE)), want)


@pytest.mark.thorough
@pytest.mark.parametrize("density", [0.3, 0.001, 1.0])
def test_ties_trims_elects_and_averages(density):
    trimmed = []
    for change in task_vectors():
        # 63 entries: 18 stay, or 1, or all.
        kept = np.argsort(np.abs(change).ravel())[::-1][: max(1, math.floor(density * 63))]
        one = np.zeros(63)
        one[kept] = change.ravel()[kept]
        trimmed.append(one.reshape(7, 9))
    total, mass = elected(trimmed)
    want = BASE + np.divide(total, mass, out=np.zeros_like(total), where=mass > 0)
    got = mix.ties(ARRAYS, jnp.asarray(WEIGHTS), base=jnp.asarray(BASE), density=density)
    close(got, want)


@pytest.mark.thorough
def test_as_many_entries_stay_among_equals():
    leaf = jnp.ones((5, 4), jnp.bfloat16)
    got = mix.ties([leaf, leaf], jnp.ones(2), base=0 * leaf, density=0.4)
    assert got.dtype == jnp.bfloat16
    assert int((got != 0).sum()) == 8


@pytest.mark.thorough
@pytest.mark.parametrize("elect", [False, True])
def test_dare_drops_rescales_and_adds(elect):
    options = {"base": jnp.asarray(BASE), "density": 0.4, "key": jax.random.key(3)}
    # With one weight at a time the survivors of each task vector are seen.
    masks = [
        np.asarray(mix.dare(ARRAYS, jnp.eye(3)[i], elect=False, **options)) != BASE
        for i in range(3)
    ]
    changes = [np.where(m, c / 0.4, 0) for m, c in zip(masks, task_vectors(), strict=True)]
    total = sum(w * change for w, change in zip(WEIGHTS, changes, strict=True))
    want = BASE + (elected(changes)[0] if elect else total)
    # Changes are divided by 0.4, so their roundings are as well.
    got = mix.dare(ARRAYS, jnp.asarray(WEIGHTS), elect=elect, **options)
    np.testing.assert_allclose(got, want, rtol=0, atol=6e-6)


@pytest.mark.thorough
def test_dare_keeps_each_entry_by_its_own_chance():
    ones = [jnp.ones((200, 300)), jnp.ones((200, 300))]
    key, base = jax.random.key(3), jnp.zeros((200, 300))
    first, second = (
        np.asarray(mix.dare(ones, w, base=base, density=0.25, key=key, elect=False))
        for w in jnp.eye(2)
    )
    # What stays is 1 / 0.25; 60000 chances: five standard deviations of the share are 0.009.
    assert set(np.unique(first)) == {0.0, 4.0}
    for share, want in (((first > 0).mean(), 0.25), (((first > 0) & (second > 0)).mean(), 0.0625)):
        assert abs(share - want) < 0.009


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_equal_parameters_give_themselves(dtype):
    leaf = jnp.asarray(LEAVES[0].astype(dtype)).at[0, 0].set(-0.0)
    weights = jnp.asarray([0.3, 0.7], jnp.float32)
    merged = [
        mix.linear([leaf, leaf], weights),
        mix.slerp([leaf, leaf], weights),
        mix.task_arithmetic([leaf, leaf], weights, base=leaf),
        mix.ties([leaf, leaf], weights, base=leaf, density=0.3),
        mix.dare([leaf, leaf], weights, base=leaf, density=0.3, key=jax.random.key(0), elect=True),
    ]
    for got in merged:
        assert got.dtype == leaf.dtype
        assert np.asarray(got).tobytes() == np.asarray(leaf).tobytes()
