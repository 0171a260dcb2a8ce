# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools
import re

import jax
import numpy as np
import preference_oracle
import pytest
from batches import pairs_of
from flax import nnx

from dovetail_tune import AdaptersOff, Frozen, Metric, Twin, dpo, mean_loss, token_logps
from dovetail_tune.losses.kinds import KINDS
from dovetail_tune.testing import TinyDecoder

PAIRS, LENGTH = 4, 10
MPO = {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}
CASES = [
    {"kind": "sigmoid", "beta": 0.3},
    {"kind": "sigmoid", "label_smoothing": 0.2, "divergence": "js_divergence"},
    {"kind": "hinge", "divergence": "alpha_divergence", "alpha": 0.7, "weighted": True},
    {"kind": "ipo", "length_weight": 0.4},
    {"kind": "sigmoid_norm", "beta": 2.0, "length_weight": 0.0, "weighted": True},
    {"kind": "exo_pair", "label_smoothing": 0.01},
    {"kind": "discopop", "discopop_tau": 0.5},
    {"kind": "aot"},
    {"kind": {"aot_unpaired": 2.0, "apo_zero": 0.5}, "label_smoothing": 0.1},
    {"kind": MPO, "length_weight": 0.3},
    {"kind": "sft"},
]


@pytest.fixture(scope="module")
def model():
    return TinyDecoder(depth=0, rngs=nnx.Rngs(3))  # its layers would only be compiled


def _batch(**changes):
    """Pairs with the reference of each token, which is near the model's."""
    batch = pairs_of(pairs=PAIRS, length=LENGTH, seed=1)
    rng = np.random.default_rng(5)
    ref = -rng.uniform(2.5, 4.5, batch["mask"].shape).astype(np.float32) * batch["mask"]
    return batch | {"ref_logps": ref} | changes


def _sums(batch):
    """The batch with the reference of each row."""
    return batch | {"ref_logps": batch["ref_logps"].sum(1)}


LOSSES = [dpo(**case) for case in CASES]
PROGRAM = nnx.jit(lambda model, batch: [loss(model, batch, key=None) for loss in LOSSES])


def _wanted(model, batch, case):
    case = dict(case)
    kind = case.pop("kind")
    own = {k: v for k, v in case.items() if k in ("beta", "length_weight", "weighted")}
    options = {k: v for k, v in case.items() if k not in own}
    kinds = kind if isinstance(kind, dict) else {kind: 1.0}
    smooth = {k: options.pop("label_smoothing") for k in ["label_smoothing"] if k in options}
    terms = {}
    for name, factor in kinds.items():
        smoothing = smooth if name in KINDS and KINDS[name].smoothing else {}
        terms |= preference_oracle.dpo(model, batch, {name: factor}, **own, **options, **smoothing)
    return terms


def _id(case):
    return re.sub(r"[^\w.]+", "-", str(case)).strip("-")


each = pytest.mark.parametrize("i", range(len(CASES)), ids=map(_id, CASES))


@pytest.fixture(scope="module")
def terms(model):
    """Terms of every case for a batch, computed once."""
    return functools.cache(lambda make: PROGRAM(model, make()))


def _fillers():
    """Pair 1 is a filler, whose reference is not even a number."""
    batch = _batch()
    batch["mask"][2:4] = 0
    batch["ref_logps"][2:4] = np.nan
    return batch


def _empty():
    """The rejected answer of pair 0 and the chosen one of pair 2 have no tokens."""
    batch = _batch()
    batch["mask"][[1, 4]] = 0
    return batch


def _identical():
    batch = _batch()
    for name, x in batch.items():
        batch[name] = np.repeat(x[0::2], 2, axis=0)
    return batch


@pytest.mark.capability("preference losses with a reference")
@each
@pytest.mark.parametrize("make", [_batch, _fillers, _empty, _identical])
def test_terms_and_metrics_equal_float64(model, terms, i, make):
    batch = make()
    batch["ref_logps"] = np.nan_to_num(batch["ref_logps"])
    preference_oracle.assert_terms(terms(make)[i], _wanted(model, batch, CASES[i]))


def test_ties_are_wrong(terms):
    for values in terms(_identical):
        assert float(values["accuracy"][0]) == 0
        assert float(values["accuracy"][1]) == PAIRS


def _gradient(loss, model, batch):
    graph, params = nnx.split(model)

    def value(params):
        return mean_loss(loss)(nnx.merge(graph, params), batch)[0]

    return jax.grad(value)(params)


@pytest.mark.thorough
def test_the_reference_of_a_pair_that_does_not_count_reaches_no_gradient(model):
    def every(model, batch, *, key):
        terms = [loss(model, batch, key=key) for loss in LOSSES]
        return {f"{i}/{name}": x for i, each in enumerate(terms) for name, x in each.items()}

    gradient = jax.jit(functools.partial(_gradient, every, model))
    known, unknown = _empty(), _empty()
    for row in (0, 1, 4, 5):  # the other answer of both pairs has tokens
        unknown["ref_logps"][row] = np.where(unknown["mask"][row] > 0, np.nan, 0)
    jax.tree.map(np.testing.assert_array_equal, gradient(unknown), gradient(known))


@pytest.fixture(scope="module")
def gradients(model):
    """Gradients of all cases for a batch: one program."""

    program = jax.jit(lambda batch: [_gradient(loss, model, batch) for loss in LOSSES])
    return functools.cache(lambda make: program(make()))


@pytest.mark.thorough
@pytest.mark.parametrize("make", [_fillers, _empty, _identical])
def test_gradients_are_finite(gradients, make):
    for leaf in jax.tree.leaves(gradients(make)):
        assert np.isfinite(leaf).all()


@pytest.mark.thorough
def test_metrics_are_not_trained(model):
    batch = _batch()
    assert _trained(LOSSES[0](model, batch, key=None)) == {"sigmoid"}

    def metrics(model):
        values = LOSSES[0](model, batch, key=None)
        return sum(term.sum for term in values.values() if isinstance(term, Metric))

    assert all((leaf == 0).all() for leaf in jax.tree.leaves(nnx.grad(metrics)(model)))


def _floats(terms):
    return {name: tuple(map(float, term)) for name, term in terms.items()}


def _trained(terms):
    return {name for name, term in terms.items() if not isinstance(term, Metric)}


@pytest.mark.thorough
def test_each_kind_is_a_term(model):
    batch = _batch()
    assert _trained(dpo(kind=MPO)(model, batch, key=None)) == set(MPO)


WHOLE = [i for i, loss in enumerate(LOSSES) if loss.whole_batch]


class TestMicrobatches:
    def test_loss_says_what_belongs_together(self):
        assert all(loss.rows == 2 for loss in LOSSES)
        names = [CASES[i]["kind"] for i in WHOLE]
        assert names == ["aot", {"aot_unpaired": 2.0, "apo_zero": 0.5}]

    @pytest.mark.parametrize("make", [_batch, _empty])
    @pytest.mark.parametrize("parts", [2, 4])
    def test_sums_and_counts_add_up(self, model, terms, make, parts):
        # Rows of each microbatch in a batch of full size, with fillers in the other places.
        split = []
        for rows in np.split(np.arange(2 * PAIRS), parts):
            batch = make()
            batch["mask"] = np.where(np.isin(np.arange(2 * PAIRS), rows)[:, None], batch["mask"], 0)
            split.append(PROGRAM(model, batch))
        for i, whole in enumerate(terms(make)):
            if i in WHOLE:
                continue
            added = jax.tree.map(lambda *x: sum(map(float, x)), *(s[i] for s in split))
            # Sums of 8 rows in another order.
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), added, whole)

    @pytest.mark.thorough
    @pytest.mark.parametrize("parts", [2, 4])
    def test_rows_do_not_depend_on_their_batch(self, model, parts):
        batch, loss = _batch(), dpo(kind=MPO, length_weight=0.3, weighted=False)
        whole = loss(model, batch, key=None)
        rows = 2 * PAIRS // parts
        split = [
            loss(model, {k: x[i : i + rows] for k, x in batch.items()}, key=None)
            for i in range(0, 2 * PAIRS, rows)
        ]
        added = jax.tree.map(lambda *x: sum(x), *split)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), added, whole)


@pytest.mark.thorough
@pytest.mark.parametrize("chunks", [2, 4])
def test_chunks_change_neither_terms_nor_gradients(model, terms, gradients, chunks):
    some = [i for i, case in enumerate(CASES) if case["kind"] in ("aot", MPO, "hinge")]

    def run(batch):
        values = {}
        for i in some:
            loss = dpo(**CASES[i], chunks=chunks)
            values[i] = loss(model, batch, key=None), _gradient(loss, model, batch)
        return values

    for i, (values, grads) in jax.jit(run)(_fillers()).items():
        preference_oracle.assert_terms(values, _floats(terms(_fillers)[i]))
        for own, whole in zip(
            jax.tree.leaves(grads), jax.tree.leaves(gradients(_fillers)[i]), strict=True
        ):
            # Sums over 80 tokens in another order.
            np.testing.assert_allclose(own, whole, rtol=2e-4, atol=2e-6)


@pytest.mark.thorough
def test_chunks_are_scored_apart(model):
    rows = set()

    def score(model, batch):
        rows.add(batch["tokens"].shape[0])
        return token_logps(model, batch)

    dpo(scorer=score, chunks=2)(model, _batch(), key=None)
    assert rows == {PAIRS}


class TestReferences:
    @pytest.mark.thorough
    def test_sums_of_rows_equal_tokens(self, model, terms):
        values = dpo(**CASES[0])(model, _sums(_batch()), key=None)
        preference_oracle.assert_terms(values, _floats(terms(_batch)[0]))

    def test_tokens_of_the_prompt_are_not_read(self, model, terms):
        batch = _batch()
        batch["ref_logps"] = np.where(batch["mask"] > 0, batch["ref_logps"], np.nan)
        for own, other in zip(PROGRAM(model, batch), terms(_batch), strict=True):
            jax.tree.map(np.testing.assert_array_equal, own, other)

    @pytest.mark.parametrize("options", [{}, {"length_weight": 0.3}, {"weighted": True}])
    def test_a_twin_of_the_policy_has_margin_0(self, model, options):
        batch = pairs_of(pairs=PAIRS, length=LENGTH, seed=1)
        values = dpo(reference=Frozen(), **options)(Twin(model, nnx.clone(model)), batch, key=None)
        wanted = preference_oracle.agreement(model, batch) if "weighted" in options else np.ones(8)
        total = np.log(2) * (wanted[0::2] * wanted[1::2]).sum()
        np.testing.assert_allclose(values["sigmoid"][0], total, rtol=1e-5)
        assert float(values["margin"][0]) == float(values["kl"][0]) == 0

    def test_length_weight_needs_the_tokens(self, model):
        message = (
            r"length_weight must have reference log-probabilities of each token, got "
            r"length_weight=0.5 with ref_logps=f32\[8\]; make the field with tokens, f32\[8, 10\]"
        )
        with pytest.raises(ValueError, match=message):
            dpo(length_weight=0.5)(model, _sums(_batch()), key=None)

    @pytest.mark.thorough
    def test_a_missing_field(self, model):
        with pytest.raises(ValueError, match=r"Field\('ref_logps'\) needs that field .*; make it"):
            dpo()(model, pairs_of(pairs=1), key=None)

    @pytest.mark.thorough
    def test_a_model_without_adapters(self, model):
        with pytest.raises(ValueError, match=r"needs a model with low-rank adapters, got TinyDec"):
            dpo(reference=AdaptersOff())(model, pairs_of(pairs=1), key=None)


class TestTornPairs:
    def test_rows_are_named(self, model):
        batch = _batch()
        batch["pair_ids"][5] += 1
        a, b = batch["pair_ids"][4:6]
        message = rf"must have one pair_ids, got {a} in row 4 and {b} in row 5; do not shuffle"
        with pytest.raises(ValueError, match=message):
            dpo()(model, batch, key=None)

    def test_the_loss_is_nan_under_jit(self, model):
        batch = _batch()
        batch["pair_ids"][5] += 1
        for values in PROGRAM(model, batch):
            assert all(np.isnan(values[name][0]) for name in _trained(values))

    def test_odd_rows(self, model):
        batch = {name: x[:3] for name, x in _batch().items()}
        with pytest.raises(ValueError, match=r"must be the chosen and the rejected .*got 3 rows; "):
            dpo()(model, batch, key=None)


def _backbones(scorer):
    """Calls of the backbone of the policy by one step of WPO."""

    class Counting(TinyDecoder):
        calls = 0

        def features(self, tokens, **options):
            Counting.calls += 1
            return super().features(tokens, **options)

    model = Counting(rngs=nnx.Rngs(0))
    values = dpo(weighted=True, scorer=scorer)(model, _batch(), key=None)
    return Counting.calls, float(values["sigmoid"][0])


@pytest.mark.thorough
def test_weights_cost_no_second_pass():
    calls, value = _backbones(token_logps)
    assert calls == 1
    assert _backbones(functools.partial(token_logps, chunk=16)) == (1, pytest.approx(value))
    own = lambda model, batch, **options: token_logps(model, batch, **options)  # noqa: E731
    assert _backbones(own) == (2, pytest.approx(value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "sigmod"},
            r"kind must be one of sigmoid, .* got 'sigmod'; write kind='sigm",
        ),
        ({"kind": {"sigmoid": 1.0, "stf": 1.0}}, r"got 'stf'; write kind='sft'"),
        ({"kind": {}}, r"kind must name at least one loss, got kind={}; pass for example"),
        ({"kind": {"hinge": 0.0}}, r"factor of kind='hinge' must be above 0 .*factor=0.0; pass"),
        ({"kind": {"sft": float("inf")}}, r"factor of kind='sft' must be .*factor=inf; pass"),
        ({"beta": -0.1}, r"beta must be above 0 and finite, got beta=-0.1; pass"),
        ({"label_smoothing": 0.6}, r"in \[0, 0.5\), got label_smoothing=0.6; pass"),
        ({"kind": "sft", "label_smoothing": 0.1}, r"with kind=sft; leave it out"),
        ({"kind": "exo_pair"}, r"'exo_pair' must have label_smoothing above 0, got"),
        (
            {"kind": MPO, "divergence": "forward_kl"},
            r"got divergence='forward_kl' with kind='bco_pair'; pass one of those",
        ),
        ({"length_weight": 1.5}, r"length_weight must be in \[0, 1\], got length_weight=1.5; pass"),
        ({"length_weight": -0.5}, r"must be in \[0, 1\], got length_weight=-0.5; pass"),
        ({"chunks": 0}, r"chunks must be at least 1, got chunks=0; pass for example chunks=1"),
        (
            {"weighted": True, "kind": "aot"},
            r"single pairs, got kind='aot'; pass weighted=False",
        ),
        ({"weighted": True, "kind": MPO}, r"of single pairs, got kind='sft'; pass weighted=False"),
        (
            {"weighted": True, "scorer": functools.partial(token_logps, temperature=0.7)},
            r"weighted=True sets the scorer's temperature, .* got temperature=0.7; pass a scorer",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        dpo(**options)


def test_chunks_that_split_pairs(model):
    with pytest.raises(ValueError, match=r"rows=8, chunks=3; pass a divisor of 4 as chunks"):
        dpo(chunks=3)(model, _batch(), key=None)


@pytest.mark.thorough
def test_on_eight_devices(on_eight_devices):
    on_eight_devices("preferences_sharded.py")
