# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite for sampling finds what is wrong, and its own numbers are right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.sampling.api import sample
from dovetail_kernels.testing import sampling as suite

CASES = {case.name: case for case in suite.cases()}


def naive(logits, *, keys, temperature=1.0):
    """Gumbel noise, and a refusal of all that it would get wrong."""
    if not np.isfinite(np.asarray(logits, np.float32).max(1)).all() or np.ndim(temperature):
        raise ValueError("one temperature, and logits that have a distribution")
    if temperature < 1e-6:
        raise ValueError("no division by 0")
    z = logits.astype(jnp.float32) / temperature
    return jax.jit(jax.vmap(jax.random.categorical))(keys, z).astype(jnp.int32)


@pytest.mark.thorough
def test_a_function_with_gumbel_noise_passes_the_features_that_it_claims():
    suite.check_sample(naive, supports={"excluded", "bfloat16", "float16"})
    with pytest.raises(AssertionError, match=r"a tiny temperature: needs .* refused: ValueError"):
        suite.check_sample(naive, supports={"temperature"})


def dropped(name):
    """Our function, blind to one option."""
    return lambda logits, **options: sample(
        logits, **{key: value for key, value in options.items() if key != name}
    )


def changed(**of):
    """Our function, with options changed."""
    return lambda logits, **options: sample(
        logits, **(options | {name: f(options[name]) for name, f in of.items()})
    )


def of_other_logits(f):
    return lambda logits, **options: sample(f(logits), **options)


def of_other_keys(f):
    return lambda logits, *, keys, **options: sample(logits, keys=f(keys), **options)


def in_bfloat16(logits, *, keys):
    """Gumbel noise in the dtype of the logits, which is too coarse."""
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


def last_of_equals(logits, *, keys, temperature):
    return logits.shape[1] - 1 - jnp.argmax(logits[:, ::-1], axis=1).astype(jnp.int32)


def without_minus_one(logits, **options):
    return jnp.maximum(sample(logits, **options), 0)


WRONG = [
    (dropped("temperature"), "temperature", "frequencies are off by"),
    (dropped("top_k"), "top_k", "is not kept, and was drawn"),
    (dropped("top_p"), "top_p", "is not kept, and was drawn"),
    (dropped("min_p"), "min_p", "is not kept, and was drawn"),
    (changed(top_k=lambda k: k - 1), "top_k", "is kept, and was not drawn"),
    (changed(top_k=lambda k: k + 1), "top_k", "is not kept, and was drawn"),
    (changed(top_p=lambda p: p - 0.06), "top_p", "is kept, and was not drawn"),
    (changed(min_p=lambda p: p * 0.9), "min_p", "is not kept, and was drawn"),
    (changed(temperature=lambda t: t * 1.15), "temperature", "frequencies are off by"),
    (of_other_keys(lambda keys: keys[jnp.zeros(len(keys), int)]), "plain", "was not drawn"),
    (of_other_logits(lambda z: z + 0.1 * jnp.arange(37.0)[None]), "plain", "frequencies are off"),
    (of_other_logits(lambda z: jnp.where(z == -jnp.inf, -2.0, z)), "excluded", "is not kept"),
    (of_other_logits(lambda z: jnp.nan_to_num(z)), "no distribution", "needs -1, got"),
    (of_other_logits(lambda z: jnp.nan_to_num(z)), "no distribution, long", "needs -1, got"),
    (without_minus_one, "no distribution, filtered", "needs -1, got 0"),
    (in_bfloat16, "bfloat16", "frequencies are off by"),
    (last_of_equals, "equal logits, greedy", "is not kept, and was drawn"),
    (lambda z, **o: sample(z, **o).astype(jnp.float32), "plain", r"must be int32\[4000\], got"),
    (lambda z, **o: sample(z, **o)[1:], "plain", r"must be int32\[4000\], got int32\[3999\]"),
    (lambda z, **o: sample(z, **o) + 1, "plain", "1 to 37 drawn of V=37"),
    (changed(top_k=lambda k: k[::-1]), "all, by row", "kept, and was"),
    (changed(min_p=lambda p: p[::-1]), "all, by row", "kept, and was"),
]


@pytest.mark.parametrize("fn, name, words", WRONG)
def test_what_is_wrong_is_found(fn, name, words):
    with pytest.raises(AssertionError, match=rf"{name}.*{words}"):
        suite.check(fn, CASES[name])


@pytest.mark.thorough
def test_equal_logits_that_are_split_are_found():
    def exactly_k(logits, *, keys, top_k):
        values, order = jax.lax.top_k(logits, top_k)
        chosen = jax.vmap(jax.random.categorical)(keys, values)
        return jnp.take_along_axis(order, chosen[:, None], axis=1)[:, 0].astype(jnp.int32)

    suite.check(exactly_k, CASES["top_k"])
    with pytest.raises(AssertionError, match=r"equal logits, row .* is kept, and was not drawn"):
        suite.check(exactly_k, CASES["equal logits"])


def test_refusing_is_allowed_except_where_support_is_claimed():
    def refusing(logits, **options):
        raise NotImplementedError("nothing")

    with pytest.raises(AssertionError, match=r"plain: needs \[\], all of them supported"):
        suite.check_sample(refusing, supports=())
    with pytest.raises(ValueError, match=r"among \['bfloat16'.* got \['top_a'\]. Omit them"):
        suite.check_sample(sample, supports={"top_a"})


@pytest.mark.parametrize("case", suite.cases(), ids=lambda case: case.name)
def test_no_threshold_of_a_case_is_within_rounding(case):
    """Sums of V probabilities in float32 are off by V eps at most, 6e-5 for 515."""
    for i, row in enumerate(suite.draw(case)):
        _, margin = suite.oracle(row, **suite._options(case, i))
        assert margin > 2 * case.vocabulary * np.finfo(np.float32).eps


def test_every_feature_has_a_case_of_its_own():
    needs = [case.needs for case in suite.cases()]
    assert frozenset().union(*needs) == suite.FEATURES
    alone = {feature for need in needs if len(need) == 1 for feature in need}
    assert suite.FEATURES - alone == {"ties", "rows"}  # of another feature's options


def test_the_oracle_by_hand():
    row = np.log(np.array([0.4, 0.1, 0.3, 0.1, 0.1]))
    found = functools.partial(suite.oracle, row)
    np.testing.assert_allclose(found()[0], [0.4, 0.1, 0.3, 0.1, 0.1])
    np.testing.assert_allclose(found(top_k=2)[0], [4 / 7, 0, 3 / 7, 0, 0])
    np.testing.assert_allclose(found(top_k=3)[0], [0.4, 0.1, 0.3, 0.1, 0.1])
    p, margin = found(top_p=0.65)
    np.testing.assert_allclose(p, [4 / 7, 0, 3 / 7, 0, 0])
    assert abs(margin - 0.05) < 1e-9
    np.testing.assert_allclose(found(min_p=0.5)[0], [4 / 7, 0, 3 / 7, 0, 0])
    np.testing.assert_allclose(found(temperature=0.5, top_k=2)[0], [16 / 25, 0, 9 / 25, 0, 0])
    assert found(temperature=0.0)[0].tolist() == [1, 0, 0, 0, 0]
    assert suite.oracle(np.array([0.0, np.nan]))[0] is None


def test_chi_square_is_a_normal_number_under_its_hypothesis():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(8))
    found = [suite.chi_square(rng.multinomial(3000, p), 3000 * p) for _ in range(2000)]
    # Means and deviations of 2,000 normal numbers, within 4 of their own deviations.
    assert abs(np.mean(found)) < 4 / np.sqrt(2000)
    assert abs(np.std(found) - 1) < 4 / np.sqrt(4000) + 0.02  # and the approximation's own error
