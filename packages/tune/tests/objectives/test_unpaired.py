# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from batches import pairs_of, rows_of
from flax import nnx

from dovetail_tune import (
    Field,
    Frozen,
    Metric,
    Twin,
    kto,
    mean_loss,
    with_mismatched,
    with_reference,
)
from dovetail_tune.testing import TinyDecoder

BETA = 0.4
WEIGHTS = {"desirable_weight": 1.3, "undesirable_weight": 0.6}
LABELS = np.array([1, 0, 0, 1, 1, 0], np.int32)
FILLER = 4


@pytest.fixture(scope="module")
def twin():
    return Twin(*(TinyDecoder(rngs=nnx.Rngs(i)) for i in range(2)))


@pytest.fixture(scope="module")
def batch(twin):
    """Six rows: one without an answer, and some whose prompt fits no other answer."""
    batch = rows_of(rows=6, seed=4)
    batch["mask"][FILLER] = 0
    return next(with_reference(with_mismatched([batch]), twin.frozen)) | {"desirable": LABELS}


def _ratios(policy, reference, batch):
    return (oracle.token_logps(policy, batch)[0] - oracle.token_logps(reference, batch)[0]).sum(1)


def _expected(policy, reference, batch, labels, *, kind="kto"):
    """Terms in float64, row by row."""
    other = {name[3:]: x for name, x in batch.items() if name.startswith("kl_")}
    mismatched = _ratios(policy, reference, other)[other["mask"].any(1)]
    point = max(0.0, mismatched.mean()) if kind == "kto" else 0.0
    ratios = _ratios(policy, reference, batch)
    values, rewards = [], ([], [])
    for i in np.flatnonzero(batch["mask"].any(1)):
        sign = 1 if labels[i] else -1
        weight = WEIGHTS["desirable_weight" if labels[i] else "undesirable_weight"]
        values.append(weight * (1 - 1 / (1 + np.exp(-sign * BETA * (ratios[i] - point)))))
        rewards[0 if labels[i] else 1].append(BETA * ratios[i])
    terms = {
        kind: np.mean(values),
        "reward_desirable": np.mean(rewards[0]),
        "reward_undesirable": np.mean(rewards[1]),
    }
    if kind == "kto":
        margin = np.mean(rewards[0]) - np.mean(rewards[1])
        terms |= {"kl": point, "kl_rows": len(mismatched) / len(values), "margin": margin}
    return terms


def _close(terms, expected):
    assert set(terms) == set(expected)
    for name, value in expected.items():
        # Sums of up to 12 float32 log-probabilities of about 5, times beta.
        np.testing.assert_allclose(terms[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("preferences of single answers")
@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired"])
def test_terms_equal_float64(twin, batch, kind):
    loss, terms = mean_loss(kto(beta=BETA, kind=kind, **WEIGHTS))(twin.trained, batch)
    expected = _expected(twin.trained, twin.frozen, batch, LABELS, kind=kind)
    _close(terms, expected)
    np.testing.assert_allclose(loss, expected[kind], rtol=2e-5)
    if kind == "kto":
        assert expected["kl"] > 0.01
        assert 0 < expected["kl_rows"] < 1


@pytest.mark.thorough
def test_the_reference_point_is_at_least_0(twin, batch):
    fields = next(
        with_reference([{k: x for k, x in batch.items() if "ref_logps" not in k}], twin.trained)
    )
    _, terms = mean_loss(kto(beta=BETA))(twin.frozen, fields)
    other = {name[3:]: x for name, x in batch.items() if name.startswith("kl_")}
    assert _ratios(twin.frozen, twin.trained, other).sum() < 0
    assert terms["kl"] == 0


@pytest.mark.thorough
def test_gradients_equal_finite_differences_with_a_fixed_reference_point(twin, batch):
    mean = mean_loss(kto(beta=BETA, **WEIGHTS))
    gradient = nnx.grad(lambda model: mean(model, batch)[0])(twin.trained)["out"]["kernel"][...]
    point = _expected(twin.trained, twin.frozen, batch, LABELS)["kl"]
    base = oracle.token_logps(twin.frozen, batch)[0].sum(1)

    def value(kernel):
        logps = _logps_of_kernel(twin.trained, batch, kernel) - base
        rows = np.flatnonzero(batch["mask"].any(1))
        signs = np.where(LABELS == 1, 1, -1)[rows]
        weights = np.where(LABELS == 1, 1.3, 0.6)[rows]
        return (weights / (1 + np.exp(signs * BETA * (logps[rows] - point)))).mean()

    kernel = np.asarray(twin.trained.out.kernel[...], np.float64)
    direction = np.random.default_rng(0).normal(size=kernel.shape)
    step = 1e-5
    slope = (value(kernel + step * direction) - value(kernel - step * direction)) / (2 * step)
    # Rounding of float32 sums over 6 rows and 12 tokens.
    np.testing.assert_allclose((np.asarray(gradient) * direction).sum(), slope, rtol=1e-4)


def _logps_of_kernel(model, batch, kernel):
    """Log-probabilities of rows in float64, with another matrix of the head."""
    options = {name: jnp.asarray(batch[name]) for name in ("positions", "segment_ids")}
    x = np.asarray(model.features(jnp.asarray(batch["tokens"]), **options)[0], np.float64)
    logits = x @ kernel
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_p, batch["targets"][..., None], axis=-1)[..., 0]
    return np.where(batch["mask"] > 0, picked, 0).sum(1)


@pytest.mark.thorough
@pytest.mark.parametrize(("chunks", "reference"), [(2, Field()), (3, Frozen())])
def test_chunks_change_nothing(twin, batch, chunks, reference):
    model = twin if isinstance(reference, Frozen) else twin.trained
    batch = {name: jnp.asarray(x) for name, x in batch.items()}

    def gradients(chunks):
        mean = mean_loss(kto(beta=BETA, reference=reference, chunks=chunks, **WEIGHTS))
        step = nnx.jit(nnx.value_and_grad(lambda model: mean(model, batch), has_aux=True))
        (_, terms), grads = step(model)
        return terms, jax.tree.leaves(grads)

    terms, grads = gradients(chunks)
    expected, others = gradients(1)
    for name in expected:
        # Differences of sums of about 40, where float32 has steps of 4e-6.
        np.testing.assert_allclose(terms[name], expected[name], rtol=1e-5, atol=4e-6)
    for own, other in zip(grads, others, strict=True):
        # Sums over rows in another order.
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-7)


def test_field_and_frozen_twin_are_equal(twin, batch):
    own = mean_loss(kto(beta=BETA))(twin.trained, batch)[1]
    other = mean_loss(kto(beta=BETA, reference=Frozen()))(twin, batch)[1]
    for name in own:
        # The field was computed in one program, the twin op by op.
        np.testing.assert_allclose(own[name], other[name], rtol=1e-5, atol=1e-6)


def test_the_whole_batch_is_needed_for_its_reference_point_alone():
    assert kto().whole_batch
    assert not kto(kind="apo_zero_unpaired").whole_batch


def test_microbatches_of_apo_add_up(twin, batch):
    loss = kto(kind="apo_zero_unpaired", beta=BETA, **WEIGHTS)
    terms = nnx.jit(lambda model, batch: loss(model, batch, key=None))
    whole = terms(twin.trained, batch)
    halves = [{name: x[i::2] for name, x in batch.items()} for i in range(2)]
    parts = [terms(twin.trained, half) for half in halves]
    for name in ("apo_zero_unpaired", "reward_desirable", "reward_undesirable"):
        for k in range(2):  # sum and count
            total = sum(terms[name][k] for terms in parts)
            # Differences of sums of about 40, where float32 has steps of 4e-6.
            np.testing.assert_allclose(total, whole[name][k], rtol=1e-6, atol=4e-6)
    assert all(isinstance(whole[name], Metric) for name in whole if name != "apo_zero_unpaired")


class TestLabels:
    @pytest.mark.parametrize("dtype", [bool, np.int32, np.float32])
    def test_dtypes(self, twin, batch, dtype):
        labels = {"desirable": LABELS.astype(dtype)}
        terms = mean_loss(kto(beta=BETA, **WEIGHTS))(twin.trained, batch | labels)[1]
        _close(terms, _expected(twin.trained, twin.frozen, batch, LABELS))

    def test_of_pairs(self, twin):
        batch = next(with_reference(with_mismatched([pairs_of(pairs=3, seed=4)]), twin.frozen))
        terms = mean_loss(kto(beta=BETA, **WEIGHTS))(twin.trained, batch)[1]
        _close(terms, _expected(twin.trained, twin.frozen, batch, [1, 0] * 3))
        labelled = batch | {"desirable": LABELS}
        terms = mean_loss(kto(beta=BETA, **WEIGHTS))(twin.trained, labelled)[1]
        _close(terms, _expected(twin.trained, twin.frozen, batch, LABELS))

    @pytest.mark.thorough
    def test_of_torn_pairs(self, twin, batch):
        batch = {k: x for k, x in batch.items() if k != "desirable"}
        batch["pair_ids"] = np.array([1, 1, 2, 3, 4, 4])
        loss = kto()
        with pytest.raises(ValueError, match=r"got 2 in row 2 and 3 in row 3; do not shuffle"):
            loss(twin.trained, batch, key=None)
        value = nnx.jit(lambda model, batch: mean_loss(loss)(model, batch)[0])(twin.trained, batch)
        assert np.isnan(value)

    @pytest.mark.parametrize("label", [2, -1, 0.5, np.nan])
    def test_others(self, twin, batch, label):
        labels = LABELS.astype(np.float32)
        labels[2] = label
        batch = batch | {"desirable": labels}
        with pytest.raises(ValueError, match=rf"must be 1 or 0 .*, got {label}.* in row 2; pass 1"):
            kto()(twin.trained, batch, key=None)
        if label == 2:
            mean = mean_loss(kto())
            assert np.isnan(
                nnx.jit(lambda model, batch: mean(model, batch)[0])(twin.trained, batch)
            )

    def test_of_another_shape(self, twin, batch):
        with pytest.raises(
            ValueError, match=r"label for each of 6 rows, got .* \[5\]; pass 1 or 0"
        ):
            kto()(twin.trained, batch | {"desirable": LABELS[:5]}, key=None)

    def test_missing(self, twin, batch):
        batch = {k: x for k, x in batch.items() if k != "desirable"}
        with pytest.raises(ValueError, match=r"kto needs labels, got .*; add the field desirable"):
            kto()(twin.trained, batch, key=None)


def test_without_mismatched_rows_the_reference_point_is_0(twin, batch):
    terms = mean_loss(kto())(twin.trained, batch | {"kl_mask": 0 * batch["kl_mask"]})[1]
    assert terms["kl"] == 0
    assert terms["kl_rows"] == 0


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("kl_", r"answers of other rows, got a batch of .*; make them with with_mismatched"),
        ("ref_logps", r"Field\('ref_logps'\) needs that field .*; make it with with_reference"),
        ("kl_ref_logps", r"Field\('ref_logps'\) needs that field .*; make it with with_reference"),
    ],
)
def test_missing_fields(twin, batch, missing, message):
    batch = {name: x for name, x in batch.items() if not name.startswith(missing)}
    with pytest.raises(ValueError, match=message):
        kto()(twin.trained, batch, key=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "apo"}, r"kind must be one of kto, apo_zero_unpaired, got kind='apo'; pass"),
        ({"beta": -0.1}, r"beta must be above 0, got beta=-0.1; leave it out for 0.1"),
        ({"desirable_weight": -1.0}, r"desirable_weight must be .*=-1.0; leave it out for 1"),
    ],
)
def test_options_out_of_range(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        kto(**options)


def test_chunks_that_do_not_divide(twin, batch):
    with pytest.raises(ValueError, match=r"must divide into chunks .*rows=6, chunks=4; pass a div"):
        kto(chunks=4)(twin.trained, batch, key=None)
