# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite for routers finds what is wrong, and its own numbers are right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.grouped.routing import ExpertGroups, route_tokens
from dovetail_kernels.testing import routing as suite

CASES = {case.name: case for case in suite.cases()}


@pytest.mark.parametrize("name", ["softmax", "sigmoid, not normalised", "as DeepSeek-V3"])
def test_the_gradients_of_the_oracle_are_those_of_differences(name):
    logits, bias, g = suite.draw(CASES[name])
    logits, step = np.asarray(logits, np.float64)[:3], 1e-6
    oracle = functools.partial(suite.oracle, g=g[:3], bias=bias, **CASES[name].options)
    exact = oracle(logits)[2]
    for at in np.ndindex(logits.shape):
        move = np.zeros_like(logits)
        move[at] = step
        found = [(oracle(logits + sign * move)[1] * g[:3]).sum() for sign in (1, -1)]
        # step² from the second derivative, eps / step from rounding.
        assert abs((found[0] - found[1]) / (2 * step) - exact[at]) < 1e-8


def test_groups_by_hand():
    # Worth by best: 9, 8, 7; by the best two: 9 + 1, 8 + 6, 7 + 7.
    selection = np.array([[9.0, 1, 0, 8, 6, 0, 7, 7, 0]])
    best = suite._kept(selection, ExpertGroups(count=3, k=1, score="max"))
    assert best.tolist() == [[True] * 3 + [False] * 6]
    top2 = suite._kept(selection, ExpertGroups(count=3, k=2))
    assert top2.tolist() == [[False] * 3 + [True] * 6]


def plain(logits, *, k, **options):
    """A softmax over the chosen, blind to any option."""
    chosen, experts = jax.lax.top_k(logits.astype(jnp.float32), k)
    return jax.nn.softmax(chosen), experts


def last_of_ties(logits, **options):
    weights, experts = route_tokens(logits[:, ::-1], **options)
    return weights, logits.shape[1] - 1 - experts


@pytest.mark.parametrize(
    "fn, name, words",
    [
        (lambda x, **o: route_tokens(x, **(o | {"k": 2})), "softmax", "int32[13, 2]"),
        (
            lambda x, **o: (route_tokens(x, **o)[0] + 1e-4, route_tokens(x, **o)[1]),
            "softmax",
            "weights off by",
        ),
        (
            lambda x, **o: (route_tokens(x, **o)[0], route_tokens(x, **o)[1].astype(float)),
            "softmax",
            "int32",
        ),
        (lambda x, **o: route_tokens(jax.lax.stop_gradient(x), **o), "softmax", "gradient off by"),
        (last_of_ties, "ties", "experts must be"),
        (plain, "softmax, not normalised", "weights off by"),
        (plain, "scale", "weights off by"),
        (plain, "bias", "experts must be"),
        (plain, "groups by their best", "experts must be"),
    ],
)
def test_what_is_wrong_is_found(fn, name, words):
    with pytest.raises(AssertionError, match=name) as error:
        suite.check(fn, CASES[name])
    assert words in str(error.value)


@pytest.mark.thorough
def test_refusing_is_allowed_where_it_is_said_and_only_there():
    def careful(logits, *, k, **options):
        if options:
            raise NotImplementedError(str(sorted(options)))
        return plain(logits, k=k)

    suite.check_route_tokens(careful, supports={"bfloat16"}, grad=False)
    with pytest.raises(AssertionError, match=r"scale: needs .* refused: NotImplementedError"):
        suite.check_route_tokens(careful, supports={"scale"}, grad=False)
    with pytest.raises(AssertionError, match="not normalised"):
        suite.check_route_tokens(plain, supports=set(), grad=False)


def test_an_unknown_feature():
    with pytest.raises(ValueError, match=r"supports must be among \['bfloat16'.*got \['hash'\]"):
        suite.check_route_tokens(route_tokens, supports={"hash"})
