# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pair_oracle
import pytest

from dovetail_tune.losses import pairwise
from dovetail_tune.losses.kinds import KINDS

N = 7
TOKENS = np.array([[3, 9, 1, 4, 12, 5, 2], [6, 2, 8, 4, 1, 7, 11]], np.float32)
ABLE = [kind for kind, form in KINDS.items() if form.divergence]
SMOOTH = [kind for kind, form in KINDS.items() if form.smoothing]
RATES = {"exo_pair": 1e-3}  # it has none without

CASES = [(kind, {}) for kind in KINDS if kind != "exo_pair"]
CASES += [(kind, {"label_smoothing": 0.15}) for kind in SMOOTH]
CASES += [(kind, {"divergence": name}) for kind in ABLE for name in ("forward_kl", "js_divergence")]
CASES += [(kind, {"divergence": "alpha_divergence", "alpha": 0.3}) for kind in ABLE]
CASES += [("sigmoid", {"divergence": "alpha_divergence", "alpha": 2.0})]
CASES += [("discopop", {"discopop_tau": 0.7})]


def _answers(*, scale: float = 3.0, seed: int = 0) -> np.ndarray:
    """Log-probabilities [4, N] whose ratios are of the order of `scale`, and never 0."""
    rng = np.random.default_rng(seed)
    ref = -rng.uniform(5, 30, (2, N))
    return np.concatenate([ref + scale * rng.normal(size=(2, N)), ref]).astype(np.float32)


def _options(kind, options):
    options = {"beta": 0.4, "kind": kind} | options
    if kind in RATES:
        options.setdefault("label_smoothing", RATES[kind])
    return options | ({"tokens": TOKENS} if KINDS[kind].tokens else {})


def _losses(case, answers):
    kind, options = case
    options = _options(kind, options)
    return pairwise(
        *answers, **options | ({"tokens": tuple(TOKENS)} if "tokens" in options else {})
    )


def _with_gradient(case, answers):
    def total(answers):
        losses = _losses(case, answers)
        return losses.sum(), losses

    (_, losses), slopes = jax.value_and_grad(total, has_aux=True)(answers)
    return losses, slopes


@functools.cache
def _program():
    """Losses and gradients of all cases, compiled once."""
    return jax.jit(lambda answers: [_with_gradient(case, answers) for case in CASES])


@functools.cache
def _results(make):
    return _program()(make())


def _name(case):
    kind, options = case
    return "-".join([kind, *(str(value) for value in options.values())])


def _extreme() -> np.ndarray:
    ratios = [[1e4, -1e4, 3e3, -2e2, 0, 1e4, -90], [-1e4, 1e4, -80, 2e2, 0, 1e4, 90]]
    return np.concatenate([ratios, np.zeros((2, N))]).astype(np.float32)


each = pytest.mark.parametrize("i", range(len(CASES)), ids=map(_name, CASES))


@pytest.mark.thorough
@each
def test_values_and_gradients_equal_float64(i):
    losses, slopes = _results(_answers)[i]
    exact = functools.partial(pair_oracle.pairwise, **_options(*CASES[i]))
    assert losses.dtype == jnp.float32
    # Ratios are differences of numbers of 30 in float32; f-divergences and squares magnify them.
    np.testing.assert_allclose(losses, exact(_answers()), rtol=2e-5, atol=2e-6)
    wanted = pair_oracle.gradient(exact, _answers(), step=1e-6)
    np.testing.assert_allclose(slopes, wanted, rtol=1e-4, atol=2e-5)


# The square of a score of exp(80) is infinite.
SQUARED = [
    i for i, (kind, options) in enumerate(CASES) if kind == "ipo" and "divergence" in options
]


@pytest.mark.thorough
@pytest.mark.parametrize("i", sorted(set(range(len(CASES))) - set(SQUARED)))
def test_extreme_margins_have_finite_values_and_gradients(i):
    kind, options = CASES[i]
    losses, slopes = _results(_extreme)[i]
    assert np.isfinite(slopes).all()
    if "divergence" in options:
        assert np.isfinite(losses).all()  # beyond exp(80) the score is constant
    else:
        exact = pair_oracle.pairwise(_extreme(), **_options(kind, options))
        np.testing.assert_allclose(losses, exact, rtol=1e-5, atol=1e-6)


def test_seeds_are_a_batch_axis():
    stacked = np.stack([_answers(seed=seed) for seed in range(3)])
    cases = [case for case in CASES if "divergence" not in case[1]]
    program = jax.jit(jax.vmap(lambda answers: [_losses(case, answers) for case in cases]))
    for case, by_seed in zip(cases, program(stacked), strict=True):
        for answers, losses in zip(stacked, by_seed, strict=True):
            exact = pair_oracle.pairwise(answers, **_options(*case))
            np.testing.assert_allclose(losses, exact, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["aot", "aot_unpaired"])
class TestWholeBatch:
    @pytest.mark.thorough
    def test_pairs_that_do_not_count_change_no_other(self, kind):
        answers = _answers(seed=1)
        where = np.array([True, False, True, True, False, True, True])
        garbage = np.where(where, answers, 1e4).astype(np.float32)

        def total(answers):
            losses = pairwise(*answers, beta=0.4, kind=kind, where=where)
            return jnp.where(where, losses, 0).sum(), losses

        (_, losses), slopes = jax.value_and_grad(total, has_aux=True)(garbage)
        exact = functools.partial(pair_oracle.pairwise, beta=0.4, kind=kind)
        np.testing.assert_allclose(losses[where], exact(answers[:, where]), rtol=2e-5)
        wanted = pair_oracle.gradient(exact, answers[:, where], step=1e-6)
        np.testing.assert_allclose(slopes[:, where], wanted, atol=2e-5)
        np.testing.assert_array_equal(slopes[:, ~where], 0)

    def test_equal_values_have_equal_losses(self, kind):
        answers = np.repeat(_answers(seed=2)[:, :1], 4, axis=1)
        losses = pairwise(*answers, beta=0.4, kind=kind)
        np.testing.assert_array_equal(losses, np.repeat(losses[:1], 4))


def test_empty_answers_count_as_one_token():
    answers, none = _answers(), np.zeros(N, np.float32)
    losses = pairwise(*answers, kind="ipo", tokens=(none, none))
    ones = np.ones((2, N))
    wanted = pair_oracle.pairwise(answers, beta=0.1, kind="ipo", tokens=ones)
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)


@pytest.mark.parametrize("kind", ["ipo", "sigmoid_norm"])
def test_kinds_of_mean_scores_need_the_tokens(kind):
    with pytest.raises(
        ValueError, match=rf"kind='{kind}' divides by .*tokens=None; pass\s+tokens="
    ):
        pairwise(*_answers(), kind=kind)
