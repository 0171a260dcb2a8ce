# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import numpy as np
import oracle
import pair_oracle
import preference_oracle
import pytest
from batches import pairs_of
from flax import nnx

from dovetail_tune import Metric, cpo, mean_loss, orpo, simpo
from dovetail_tune.testing import TinyDecoder

PAIRS, LENGTH = 4, 10
CASES = {
    "orpo": orpo(beta=0.3),
    "orpo-row": orpo(beta=0.3, nll="row"),
    "simpo": simpo(beta=2.5, gamma=0.4),
    "alphapo": simpo(beta=2.5, gamma=0.4, alpha=0.25),
    "cpo": cpo(beta=0.3),
    "cpo-smooth": cpo(beta=0.3, label_smoothing=0.2, nll_weight=0.5),
    "cpo-hinge": cpo(beta=0.3, kind="hinge", nll_weight=0.0),
    "cpo-ipo": cpo(beta=0.3, kind="ipo"),
}


@pytest.fixture(scope="module")
def model():
    return TinyDecoder(depth=0, rngs=nnx.Rngs(3))  # its layers would only be compiled


def _batch():
    return pairs_of(pairs=PAIRS, length=LENGTH, seed=1)


def _fillers():
    batch = _batch()
    batch["mask"][2:4] = 0
    return batch


def _empty():
    """The rejected answer of pair 0 and the chosen one of pair 2 have no tokens."""
    batch = _batch()
    batch["mask"][[1, 4]] = 0
    return batch


PROGRAM = nnx.jit(
    lambda model, batch: {k: loss(model, batch, key=None) for k, loss in CASES.items()}
)


@pytest.fixture(scope="module")
def terms(model):
    """Terms of every case for a batch, computed once."""
    return functools.cache(lambda make: PROGRAM(model, make()))


def _row_likelihood(model, batch):
    """Log-probabilities and numbers of the targets up to the last of each answer."""
    whole = np.zeros_like(batch["mask"])
    for i, row in enumerate(batch["mask"]):
        whole[i, : np.flatnonzero(row)[-1] + 1 if row.any() else 0] = 1
    return oracle.token_logps(model, batch | {"mask": whole})[0].sum(1), whole.sum(1)


def _wanted(model, batch, case):
    lengths = preference_oracle.pairs_of(batch["mask"].sum(1))
    keep = (lengths[0] > 0) & (lengths[1] > 0)
    sums = np.stack(preference_oracle.pairs_of(oracle.token_logps(model, batch)[0].sum(1)))[:, keep]
    tokens = np.stack(lengths)[:, keep]
    means, count = sums / tokens, float(keep.sum())
    nll = -sums[0].sum(), float(tokens[0].sum())
    reference_free = np.concatenate([sums, np.zeros_like(sums)])
    of_pair = functools.partial(pair_oracle.pairwise, reference_free, beta=0.3, tokens=tokens)
    if case in ("orpo", "orpo-row"):
        if case == "orpo-row":
            rows, numbers = _row_likelihood(model, batch)
            nll = -rows[0::2][keep].sum(), float(numbers[0::2][keep].sum())
        ratio = 0.3 * pair_oracle.odds_ratio(means).sum()
        terms, rewards = {"odds_ratio": (ratio, count), "nll": nll}, 0.3 * means
    elif case in ("simpo", "alphapo"):
        alpha = 0.25 if case == "alphapo" else 0.0
        losses = pair_oracle.target_margin(means, beta=2.5, gamma=0.4, alpha=alpha)
        terms = {"simpo": (losses.sum(), count)}
        rewards = 2.5 * (means if alpha == 0 else (1 - np.exp(means) ** -alpha) / alpha)
    else:
        kind = {"cpo": "sigmoid", "cpo-smooth": "sigmoid"}.get(case, case.removeprefix("cpo-"))
        smoothing = 0.2 if case == "cpo-smooth" else 0.0
        terms = {kind: (of_pair(kind=kind, label_smoothing=smoothing).sum(), count)}
        if case != "cpo-hinge":
            terms["nll"] = (0.5 if case == "cpo-smooth" else 1.0) * nll[0], nll[1]
        rewards = 0.3 * (means if kind == "ipo" else sums)
    metrics = {
        "reward_chosen": rewards[0],
        "reward_rejected": rewards[1],
        "margin": rewards[0] - rewards[1],
        "accuracy": (rewards[0] > rewards[1]).astype(float),
        "logps_chosen": sums[0],
        "logps_rejected": sums[1],
    }
    return terms | {name: (values.sum(), count) for name, values in metrics.items()}


@pytest.mark.capability("preference losses without a reference")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("make", [_batch, _fillers, _empty])
def test_terms_and_metrics_equal_float64(model, terms, case, make):
    preference_oracle.assert_terms(terms(make)[case], _wanted(model, make(), case))


@pytest.mark.thorough
def test_gradients_are_finite_and_of_the_terms_alone(model):
    graph, params = nnx.split(model)

    def of(loss, batch, weights=None):
        def value(params):
            return mean_loss(loss, weights=weights)(nnx.merge(graph, params), batch)[0]

        return jax.grad(value)(params)

    @jax.jit
    def program(batch):
        return [of(loss, batch) for loss in CASES.values()]

    for make in (_fillers, _empty):
        for leaf in jax.tree.leaves(program(make())):
            assert np.isfinite(leaf).all()
    metrics = {"margin": 1.0, "logps_chosen": 1.0, "reward_rejected": 1.0, "simpo": 0.0}
    assert not any(leaf.any() for leaf in jax.tree.leaves(of(simpo(), _batch(), metrics)))


@pytest.mark.parametrize("parts", [2, 4])
def test_sums_and_counts_of_microbatches_add_up(model, terms, parts):
    split = []
    for rows in np.split(np.arange(2 * PAIRS), parts):
        batch = _batch()
        batch["mask"] = np.where(np.isin(np.arange(2 * PAIRS), rows)[:, None], batch["mask"], 0)
        split.append(PROGRAM(model, batch))
    added = jax.tree.map(lambda *x: sum(map(float, x)), *split)
    # Sums of 8 rows in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), added, terms(_batch))


def test_losses_name_their_rows():
    assert {loss.rows for loss in CASES.values()} == {2}
    assert not any(hasattr(loss, "whole_batch") for loss in CASES.values())


def test_torn_pairs(model):
    batch = _batch()
    batch["pair_ids"][1] += 1
    a, b = batch["pair_ids"][:2]
    with pytest.raises(ValueError, match=rf"got {a} in row 0 and {b} in row 1; do not shuffle"):
        orpo()(model, batch, key=None)
    for values in PROGRAM(model, batch).values():
        trained = [term for term in values.values() if not isinstance(term, Metric)]
        assert all(np.isnan(total) for total, _ in trained)


def test_a_row_without_segments_ends_with_its_answer(model):
    batch = _batch()
    wanted = CASES["orpo-row"](model, batch, key=None)["nll"]
    del batch["segment_ids"]  # TinyDecoder(depth=0) does not read them
    np.testing.assert_array_equal(CASES["orpo-row"](model, batch, key=None)["nll"], wanted)


@pytest.mark.thorough
def test_padding_before_the_prompt_is_not_of_the_row(model):
    batch = _batch()
    wanted = CASES["orpo-row"](model, batch, key=None)["nll"]
    padded = {name: np.pad(x, ((0, 0), (3, 0))) for name, x in batch.items() if x.ndim == 2}
    own = CASES["orpo-row"](model, padded, key=None)["nll"]
    np.testing.assert_allclose(own, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: orpo(beta=0.0), r"beta must be above 0 and finite, got beta=0.0; pass .*beta=0.1"),
        (lambda: orpo(nll="rows"), r"nll must be one of answer, row, got 'rows'; write nll='row'"),
        (lambda: simpo(beta=-1.0), r"beta must be above 0 and finite, got beta=-1.0; pass"),
        (lambda: simpo(gamma=-1.0), r"gamma must be at least 0 and finite, got gamma=-1.0; pass"),
        (lambda: cpo(beta=-1.0), r"beta must be above 0 and finite, got beta=-1.0; pass"),
        (
            lambda: cpo(kind="robust"),
            r"kind must be one of sigmoid, hinge, ipo, got 'robust'; pass one of those",
        ),
        (lambda: cpo(label_smoothing=0.5), r"in \[0, 0.5\), got label_smoothing=0.5; pass"),
        (
            lambda: cpo(kind="hinge", label_smoothing=0.1),
            r"a kind that has it .*label_smoothing=0.1 with kind=hinge; leave it out",
        ),
        (lambda: cpo(nll_weight=-1.0), r"nll_weight must be at least 0 .*nll_weight=-1.0; pass"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
