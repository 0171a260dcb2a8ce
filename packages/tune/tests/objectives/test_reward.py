# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of reward models against float64, from scores that test_values.py compares."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from batches import pairs_of, rows_of
from flax import nnx

from dovetail_tune import (
    Metric,
    RewardModel,
    mean_loss,
    outcome_reward,
    process_reward,
    reward_model,
)
from dovetail_tune.testing import TinyDecoder

PAIRS, BINS = 8, (0.5, 0.6, 0.7, 0.8, 0.9, 1.1)


@pytest.fixture(scope="module")
def model():
    rngs = nnx.Rngs(1)
    model = RewardModel(TinyDecoder(rngs=rngs), nnx.Linear(16, 1, rngs=rngs))
    model.head.kernel[...] *= 3  # scores over several units, for all bins of confidence
    return model


@pytest.fixture(scope="module")
def batch():
    """Pairs with margins, labels, and labels of steps; every kind of loss reads it."""
    batch = pairs_of(pairs=PAIRS, seed=2)
    rng = np.random.default_rng(3)
    rows, length = batch["tokens"].shape
    steps = (rng.uniform(size=(rows, length)) < 0.5) & (batch["mask"] > 0)
    last = batch["segment_ids"].sum(1) - 1
    steps[np.arange(rows), last] = True  # the last id of a text ends a step
    labels = np.where(steps, rng.uniform(size=steps.shape).round(1), np.nan).astype(np.float32)
    return batch | {
        "margin": np.repeat(rng.normal(size=PAIRS).astype(np.float32), 2),
        "reward": rng.uniform(size=rows).astype(np.float32).round(1),
        "step_labels": labels,
        "step_mask": steps.astype(np.int32),
    }


LOSSES = {
    "pairs": reward_model(margin="margin", center=0.3),
    "outcome": outcome_reward(),
    "squared": outcome_reward(kind="squared"),
    "process": process_reward(),
}
TERMS = {
    "pairs": ("bradley_terry", "center"),
    "outcome": ("outcome",),
    "squared": ("outcome",),
    "process": ("process",),
}
every = pytest.mark.parametrize("kind", list(LOSSES))


@nnx.jit
def _all_terms(model, batch):
    """Of all kinds in one program, which XLA compiles in little more time than one of them."""
    return {kind: loss(model, batch, key=None) for kind, loss in LOSSES.items()}


def _terms(model, batch, kind):
    return _all_terms(model, batch)[kind]


def _gradients(losses):
    def gradient(loss):
        return nnx.grad(lambda model, batch: mean_loss(loss)(model, batch)[0])

    @nnx.jit
    def gradients(model, batch):
        return {kind: gradient(loss)(model, batch) for kind, loss in losses.items()}

    return gradients


_all_gradients = _gradients(LOSSES)


@pytest.fixture(scope="module")
def gradients(model, batch):
    return _all_gradients(model, batch)


@nnx.jit
def _read(model, batch):
    return model.scores(batch), model.after_targets(batch)


def _calibration(logits, labels):
    """Brier score, and the gaps of the bins over the number of all, of float64 numbers."""
    p = np.exp(oracle.log_sigmoid(logits))
    confidence = np.maximum(p, 1 - p)
    right = np.where(logits > 0, labels, 1 - labels)
    gaps = {
        f"calibration/{low}": (right - confidence)[(low <= confidence) & (confidence < high)].sum()
        for low, high in itertools.pairwise(BINS)
    }
    return {"brier": ((p - labels) ** 2).sum(), **gaps}


def _cross_entropy(s, y):
    return -(y * oracle.log_sigmoid(s) + (1.0 - y) * oracle.log_sigmoid(-s))


def _expected(model, batch, kind):
    """Sums and count of the terms of a kind, and its derivative by the scores [B] or [B, S]."""
    scores, values = (np.asarray(x, np.float64) for x in _read(model, batch))
    if kind == "pairs":
        chosen, rejected = scores[0::2], scores[1::2]
        h, m = chosen - rejected, batch["margin"][0::2]
        sums = {
            "bradley_terry": -oracle.log_sigmoid(h - m).sum(),
            "center": 0.3 * ((chosen + rejected) ** 2).sum(),
            "accuracy": (h > 0).sum(),
            "margin": h.sum(),
            "reward_chosen": chosen.sum(),
            "reward_rejected": rejected.sum(),
            **_calibration(h, np.ones(PAIRS)),
        }
        slope = -np.exp(oracle.log_sigmoid(m - h))
        both = np.stack([slope, -slope], 1) + 0.6 * (chosen + rejected)[:, None]
        return sums, PAIRS, both.reshape(-1)
    if kind == "process":
        where = batch["step_mask"] > 0
        s, y = values[where], batch["step_labels"][where]
        sums, slope = {"process": _cross_entropy(s, y).sum()}, np.zeros(where.shape)
        slope[where] = np.exp(oracle.log_sigmoid(s)) - y
    else:
        s, y = scores, batch["reward"]
        slope = np.exp(oracle.log_sigmoid(s)) - y if kind == "outcome" else 2 * (s - y)
        sums = {"outcome": (_cross_entropy(s, y) if kind == "outcome" else (s - y) ** 2).sum()}
    sums["reward"] = s.sum()
    if kind != "squared":
        sums |= {"accuracy": ((s > 0) == (y > 0.5)).sum(), **_calibration(s, y)}
    return sums, len(s), slope


@pytest.mark.capability("reward models of pairs, answers and steps")
@every
def test_terms_and_metrics_are_those_of_float64(model, batch, kind):
    terms = _terms(model, batch, kind)
    sums, count, _ = _expected(model, batch, kind)
    assert set(terms) == set(sums)
    for name, (total, number) in terms.items():
        np.testing.assert_allclose(total, sums[name], rtol=2e-5, atol=1e-5, err_msg=name)
        assert float(number) == count, name
    trained = {name for name, term in terms.items() if not isinstance(term, Metric)}
    assert trained == set(TERMS[kind])


@pytest.mark.thorough
@every
def test_the_gradient_of_the_head_is_its_closed_form(model, batch, gradients, kind):
    _, count, slope = _expected(model, batch, kind)
    gradient = gradients[kind]
    n = batch["segment_ids"].sum(1)
    ids = np.concatenate([batch["tokens"][:, :1], batch["targets"]], 1)
    x = np.asarray(model.decoder.features(jnp.asarray(ids))[0], np.float64)[:, 1:]
    x = x if kind == "process" else x[np.arange(len(n)), n - 1]
    expected = np.tensordot(slope, x, axes=slope.ndim) / count
    # Padding follows a text, so that features without segments are those of its own ids.
    np.testing.assert_allclose(
        gradient["head"]["kernel"][...][:, 0], expected, rtol=1e-4, atol=1e-5
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert all(np.any(x) for x in jax.tree.leaves(gradient["decoder"]["layers"]))


@pytest.mark.thorough
@every
@pytest.mark.parametrize("parts", [2, 4])
def test_sums_and_counts_of_microbatches_add_up(model, batch, kind, parts):
    whole = _terms(model, batch, kind)
    rows = 2 * PAIRS // parts
    pieces = [
        _terms(model, {name: x[i * rows : (i + 1) * rows] for name, x in batch.items()}, kind)
        for i in range(parts)
    ]
    for name, (total, count) in whole.items():
        # Sums of 16 rows in another order.
        added = sum(np.float64(piece[name][0]) for piece in pieces)
        np.testing.assert_allclose(added, total, rtol=1e-5, atol=1e-5)
        assert sum(float(piece[name][1]) for piece in pieces) == count


@pytest.mark.thorough
@pytest.mark.parametrize("chunks", [2, 4])
def test_chunks_have_the_gradients_of_the_whole(model, batch, gradients, chunks):
    made = {
        "pairs": reward_model(margin="margin", center=0.3, chunks=chunks),
        "outcome": outcome_reward(chunks=chunks),
        "process": process_reward(chunks=chunks),
    }
    for kind, own in _gradients(made)(model, batch).items():
        for x, y in zip(jax.tree.leaves(own), jax.tree.leaves(gradients[kind]), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_calibration_errors_are_sums_of_the_gaps(model, batch):
    """Expected calibration error by its definition: bins weighted by their share of the pairs."""
    h = np.asarray(_read(model, batch)[0], np.float64)
    h = h[0::2] - h[1::2]
    confidence = np.exp(oracle.log_sigmoid(np.abs(h)))
    bins = np.digitize(confidence, BINS) - 1
    error = 0.0
    for i in set(bins):
        inside = bins == i
        gap = abs((h > 0)[inside].mean() - confidence[inside].mean())
        error += inside.mean() * gap
    assert len(set(bins)) > 2
    terms = _terms(model, batch, "pairs")
    own = sum(abs(x / n) for name, (x, n) in terms.items() if name.startswith("calibration/"))
    assert float(own) == pytest.approx(error, rel=1e-4)


@pytest.mark.thorough
def test_fillers_add_nothing(model, batch):
    filled = {name: x.copy() for name, x in batch.items()}
    filled["mask"][4:8] = 0
    filled["segment_ids"][6:8] = 0
    filled["reward"][4:8] = filled["step_labels"][4:8] = np.nan
    quarters = [{name: x[i : i + 4] for name, x in batch.items()} for i in (0, 8, 12)]
    for kind in LOSSES:
        expected = [_terms(model, quarter, kind) for quarter in quarters]
        for name, term in _terms(model, filled, kind).items():
            added = np.sum([quarter[name] for quarter in expected], axis=0)
            np.testing.assert_allclose(term, added, rtol=1e-5, atol=1e-5)
    for gradient in jax.tree.leaves(_all_gradients(model, filled)):
        assert np.isfinite(gradient).all()


@pytest.mark.thorough
def test_identical_answers_are_a_tie(model, batch):
    names = ("tokens", "targets", "mask", "segment_ids", "positions", "pair_ids")
    same = {name: np.repeat(batch[name][0::2], 2, axis=0) for name in names}
    terms = reward_model()(model, same, key=None)
    np.testing.assert_allclose(terms["bradley_terry"][0] / PAIRS, np.log(2), rtol=1e-6)
    assert terms["accuracy"].sum == 0
    assert terms["calibration/0.5"].sum == 0
    assert terms["brier"].sum == PAIRS / 4


class TestDamagedBatches:
    """Concrete rows are named; in a program the loss is NaN."""

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("kind", "name", "place", "value", "message"),
        [
            ("pairs", "pair_ids", 5, -7, r"one pair_ids, got .* in row 4 and -7 in row 5; do not"),
            ("pairs", "margin", 7, 9.0, r"one margin, got margin=.* in row 6 and 9 in row 7; rep"),
            ("outcome", "reward", 3, 1.5, r"in \[0, 1\], got reward=1.5 in row 3; scale them"),
            ("squared", "reward", 2, np.inf, r"must be finite, got reward=inf in row 2; scale"),
            ("process", "step_labels", (1, -1), -0.5, r"step_labels=-0.5 in row 1, slot \d+; sc"),
            ("process", "step_labels", (1, -1), np.nan, r"step_labels=nan in row 1, slot \d+; "),
        ],
    )
    def test_by_row(self, model, batch, kind, name, place, value, message):
        damaged = {key: x.copy() for key, x in batch.items()}
        if isinstance(place, tuple):
            place = place[0], int(batch["segment_ids"][place[0]].sum()) - 1
        damaged[name][place] = value
        with pytest.raises(ValueError, match=message):
            LOSSES[kind](model, damaged, key=None)
        assert np.isnan(_terms(model, damaged, kind)[TERMS[kind][0]][0])

    @pytest.mark.parametrize("chunks", [1, 2])
    def test_packed_rows_are_named_within_chunks_too(self, model, batch, chunks):
        packed = batch | {"segment_ids": batch["segment_ids"].copy()}
        packed["segment_ids"][3, 2:] = 2
        for make in (reward_model, outcome_reward, process_reward):
            with pytest.raises(ValueError, match=r"got segment_ids=\[1, 2\] in row 3; make rows"):
                make(chunks=chunks)(model, packed, key=None)

    @pytest.mark.parametrize(
        ("kind", "field"),
        [("pairs", "margin"), ("outcome", "reward"), ("process", "step_mask"), ("pairs", "mask")],
    )
    def test_missing_and_misshapen_fields(self, model, batch, kind, field):
        less = {name: x for name, x in batch.items() if name != field}
        with pytest.raises(ValueError, match=rf"got \['.*; add {field}"):
            LOSSES[kind](model, less, key=None)
        if field != "mask":
            with pytest.raises(ValueError, match=rf"{field} must be f32\[16.*got {field}=.*; give"):
                LOSSES[kind](model, batch | {field: batch[field][:, None]}, key=None)


def test_a_squared_loss_takes_any_finite_label(model, batch):
    far = batch | {"reward": 10 * batch["reward"] - 3}
    total, _ = _terms(model, far, "squared")["outcome"]
    scores = np.asarray(_read(model, batch)[0], np.float64)
    np.testing.assert_allclose(total, ((scores - far["reward"]) ** 2).sum(), rtol=1e-5)


@pytest.mark.thorough
def test_fields_of_other_names(model, batch):
    names = {"good": batch["step_labels"], "ends": batch["step_mask"], "grade": batch["reward"]}
    less = {name: x for name, x in batch.items() if not name.startswith(("step", "rew"))} | names
    own = process_reward(labels="good", where="ends")(model, less, key=None)["process"]
    np.testing.assert_allclose(own, _terms(model, batch, "process")["process"], rtol=1e-5)
    own = outcome_reward(field="grade")(model, less, key=None)["outcome"]
    np.testing.assert_allclose(own, _terms(model, batch, "outcome")["outcome"], rtol=1e-5)


@pytest.mark.thorough
def test_attention_is_passed_on(model, batch):
    seen = []

    def attention(q, k, v, **options):
        seen.append(sorted(options))
        return v

    for make in (reward_model, outcome_reward, process_reward):
        make(attention=attention)(model, batch, key=None)
    assert seen == [["causal", "positions", "segment_ids"]] * 3


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_options_and_models_are_checked(batch):
    for center in (-0.1, float("inf")):
        with pytest.raises(ValueError, match=rf"at least 0 and finite, got center={center}; write"):
            reward_model(center=center)
    with pytest.raises(ValueError, match=r"cross_entropy, squared, got kind='mse'; leave it out"):
        outcome_reward(kind="mse")
    for loss in LOSSES.values():
        with pytest.raises(TypeError, match=r"needs a RewardModel, got TinyDecoder; write for"):
            loss(TinyDecoder(rngs=nnx.Rngs(0)), batch, key=None)


def test_pairs_are_what_a_trainer_keeps_together():
    assert LOSSES["pairs"].rows == 2
    assert not hasattr(LOSSES["outcome"], "rows")
    odd = rows_of(rows=3, seed=0)
    model = RewardModel(TinyDecoder(rngs=nnx.Rngs(0)), lambda x: x.sum(-1))
    with pytest.raises(ValueError, match=r"chosen and the rejected answer, got 3 rows; batch"):
        reward_model()(model, odd, key=None)
