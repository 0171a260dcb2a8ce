# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite over every implementation; its oracle's gradients; and what it must notice."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs
from dovetail_kernels.testing import loss as suite

CASES = {case.name: case for case in suite.cases()}
LOGPROB_CASES = {case.name: case for case in suite.logprob_cases()}
# The reference is one formula, whatever the shape: these use every line of it.
FEW = ("mask", "no token", "everything")


GPU = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda"))


def each(cases):
    """Every case for the implementation in tiles, few for the reference."""
    names = [(name, "blocked") for name in cases] + [(name, "reference") for name in FEW]
    return pytest.mark.parametrize("name, impl", names)


@pytest.mark.thorough
@each(CASES)
def test_cross_entropy(name, impl):
    suite.check(functools.partial(linear_cross_entropy, impl=impl), CASES[name])


@pytest.mark.thorough
@each(LOGPROB_CASES)
def test_logprobs(name, impl):
    suite.check_logprobs(functools.partial(linear_logprobs, impl=impl), LOGPROB_CASES[name])


def of_a_gpu():
    """Cases with other options; each but the empty one again with several tiles of tokens."""
    names = ("no token", "ties", "tied", "everything")
    for name in (*names, "everything in bfloat16"):
        yield name, linear_cross_entropy, suite.check, CASES[name]
    for name in names:
        yield name, linear_logprobs, suite.check_logprobs, LOGPROB_CASES[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name, op, check, case", list(of_a_gpu()))
def test_tiles_of_the_whole_vocabulary(name, op, check, case):
    """The plan of a GPU, on this device: one tile, then three with a padded token in the last."""
    cases = (
        [case] if name == "no token" else [case, dataclasses.replace(case, shape=(1103, 8, 131))]
    )
    with use_abstract_mesh(GPU):
        for case in cases:
            check(functools.partial(op, budget=600_000), case)


@pytest.mark.thorough
def test_without_gradients():
    suite.check(linear_cross_entropy, CASES["everything"], grad=False)
    suite.check_logprobs(linear_logprobs, LOGPROB_CASES["everything"], grad=False)


def test_features_are_those_that_cases_need():
    assert set().union(*(case.needs for case in suite.cases())) == suite.FEATURES
    assert set().union(*(case.needs for case in suite.logprob_cases())) == suite.LOGPROB_FEATURES
    assert suite._shared()[0].needs == frozenset()


@pytest.mark.parametrize("name", ["everything", "temperature"])
def test_the_oracles_gradients_against_differences(name):
    """Central differences of the oracle's own values, in float64: error 1e-9 of step 1e-5."""
    if name == "temperature":
        case, oracle = LOGPROB_CASES[name], suite._log_probabilities
    else:
        case, oracle = CASES[name], suite._cross_entropy
    given = suite.operands(dataclasses.replace(case, dtype="float64"))
    given = dataclasses.replace(given, x=np.nan_to_num(given.x))

    def value(**changed):
        sums, _ = oracle(case, dataclasses.replace(given, **changed))
        if "sum" in sums:
            return sums["sum"]
        a, b = given.cotangents.astype(np.float64)
        return a @ sums["logprob"] + b @ sums["entropy"]

    rng = np.random.default_rng(0)
    for operand, gradient in oracle(case, given)[1].items():
        if getattr(given, operand) is None:
            continue
        direction = rng.standard_normal(gradient.shape)
        up, down = (
            value(**{operand: getattr(given, operand) + sign * 1e-5 * direction})
            for sign in (1, -1)
        )
        np.testing.assert_allclose(np.sum(gradient * direction), (up - down) / 2e-5, rtol=1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Sums:
    sum: jax.Array
    count: jax.Array
    z_sum: jax.Array
    correct: jax.Array


def hits(weights, right):
    return jnp.sum(jnp.where(right, weights, 0))


def plain(x, w, labels, *, where=None, padded=0, read=False):
    """A plain cross-entropy with mistakes to choose."""
    weights = jnp.ones(len(labels)) if where is None else jnp.asarray(where, jnp.float32)
    if not read:
        x = jnp.where(weights[:, None] != 0, x, 0)
    z = jnp.pad(x @ w, ((0, 0), (0, padded)))
    lse = jax.nn.logsumexp(z, axis=1)
    at = jnp.take_along_axis(z, jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]
    return Sums(
        sum=jnp.sum(weights * (lse - at)),
        count=jnp.sum(weights),
        z_sum=jnp.sum(weights * lse**2),
        correct=hits(weights, jnp.argmax(z, axis=1) == labels),
    )


@pytest.mark.thorough
def test_what_is_right_or_refused_passes():
    def refuses(x, w, labels, *, where=None):
        if x.dtype == jnp.bfloat16:
            raise NotImplementedError
        if len(x) == 0:
            raise ValueError
        return plain(x, w, labels, where=where)  # other options are a TypeError

    suite.check_linear_cross_entropy(refuses, supports={"where"})


@pytest.mark.thorough
def test_a_padded_column_that_counts_is_found():
    with pytest.raises(AssertionError, match=r"^plain: (x|w) is off by .*, the bound is"):
        suite.check_linear_cross_entropy(functools.partial(plain, padded=1), supports=())


@pytest.mark.thorough
def test_padding_that_is_read_is_found():
    with pytest.raises(AssertionError, match=r"^mask: "):
        suite.check(functools.partial(plain, read=True), CASES["mask"])


@pytest.mark.thorough
def test_an_option_that_is_ignored_is_found():
    def ignores(x, w, labels, *, soft_cap=None):
        del soft_cap
        return plain(x, w, labels)

    with pytest.raises(AssertionError, match=r"^soft_cap: "):
        suite.check_linear_cross_entropy(ignores, supports=())


@pytest.mark.thorough
def test_what_is_claimed_must_not_be_refused():
    with pytest.raises(AssertionError, match=r"bias: needs .* refused: TypeError.*bias"):
        suite.check_linear_cross_entropy(plain, supports={"bias", "empty", "where"})


@pytest.mark.thorough
def test_a_wrong_count_of_ties_is_found():
    def last(x, w, labels):
        found = plain(x, w, labels)
        best = w.shape[1] - 1 - jnp.argmax((x @ w)[:, ::-1], axis=1)
        found.correct = hits(jnp.ones(len(x)), best == labels)
        return found

    with pytest.raises(AssertionError, match=r"^ties: correct "):
        suite.check(last, CASES["ties"])


@pytest.mark.thorough
def test_another_shape_is_found():
    def kept(x, w, labels):
        found = plain(x, w, labels)
        found.sum = found.sum[None]
        return found

    with pytest.raises(AssertionError, match=r"^plain: sum is \(1,\), not \(\)"):
        suite.check(kept, CASES["plain"], grad=False)


@pytest.mark.thorough
def test_logprobs_of_another_temperature_are_found():
    def ignores(*arrays, temperature):
        return linear_logprobs(*arrays)

    with pytest.raises(AssertionError, match=r"^temperature: "):
        suite.check_logprobs(ignores, LOGPROB_CASES["temperature"])


def test_an_unknown_feature_is_refused():
    with pytest.raises(ValueError, match=r"among \['bfloat16', .*got \['mask'\]"):
        suite.check_linear_cross_entropy(plain, supports={"mask"})
