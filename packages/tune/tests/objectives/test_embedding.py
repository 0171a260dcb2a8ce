# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import rows_of
from embeddings import batch_hard, info_nce, pooled
from flax import nnx
from jax.sharding import AbstractMesh

import dovetail_tune
from dovetail_tune import Metric, mean_loss, mean_pooled, triplet
from dovetail_tune.testing import TinyDecoder

nce = dovetail_tune.info_nce


@pytest.fixture(scope="module")
def model():
    return TinyDecoder(depth=1, rngs=nnx.Rngs(3))


def _batch(rows=24, *, seed=0, ids=None, empty=()):
    """Random texts; `ids` numbers of group_ids; `empty` rows without a token."""
    batch = rows_of(rows=rows, length=9, seed=seed)
    for i in empty:
        batch["segment_ids"][i] = 0
    if ids is not None:
        drawn = np.random.default_rng(seed).integers(0, ids, rows)
        batch["group_ids"] = drawn.astype(np.int32)
    return batch


WEIGHT = np.random.default_rng(5).normal(size=(5, 4)).astype(np.float32)


def _numbers(rows, **options):
    """A batch of rows of five numbers x."""
    batch = _batch(rows, **options)
    x = np.random.default_rng(6).normal(size=(rows, 5)).astype(np.float32)
    return {name: batch[name] for name in ("segment_ids", "group_ids") if name in batch} | {"x": x}


def _linear(w, batch):
    return jnp.tanh(jnp.asarray(batch["x"]) @ w)


def _value(loss):
    """Returns (model, batch) -> (loss, terms) and gradients, compiled."""

    def scalar(model, batch):
        return mean_loss(loss)(model, batch)[0], loss(model, batch, key=None)

    return nnx.jit(nnx.value_and_grad(scalar, has_aux=True))


def _assert_terms(terms, expected):
    assert set(terms) == set(expected)
    for name, (total, count) in expected.items():
        # Sums of 24 rows, from float32 features that both share; scores are divided by 0.2.
        np.testing.assert_allclose(terms[name][0], total, rtol=2e-5, atol=2e-5, err_msg=name)
        assert float(terms[name][1]) == count, name


CASES = {
    "pairs": ({"rows": 2}, {}),
    "symmetric": ({"rows": 2, "symmetric": True}, {"ids": 15, "empty": (2, 7)}),
    "hard negatives": ({"rows": 3}, {}),
    "all": ({"rows": 3, "symmetric": True}, {"ids": 12, "empty": (0, 4, 8, 11)}),
}


@pytest.mark.thorough
class TestInfoNce:
    @pytest.mark.parametrize("case", CASES)
    def test_equals_float64(self, model, case):
        options, batch = CASES[case][0], _batch(**CASES[case][1])
        loss = nce(encode=mean_pooled(), temperature=0.2, **options)
        terms = jax.jit(lambda batch: loss(model, batch, key=None))(batch)
        _assert_terms(terms, info_nce(pooled(model, batch), batch, temperature=0.2, **options))
        trained = [name for name, term in terms.items() if not isinstance(term, Metric)]
        assert trained == ["info_nce"]

    @pytest.mark.thorough("it compiles each loss for several chunk sizes")
    @pytest.mark.capability("contrastive losses exact in chunks")
    def test_does_not_depend_on_chunks(self, model):
        """The gradient is exact too: a step along it changes the float64 loss as it says."""
        batch = _batch(48, ids=40, empty=(5,))
        options = {"rows": 3, "symmetric": True, "temperature": 0.2}
        (value, terms), gradients = _value(nce(encode=mean_pooled(), **options))(model, batch)
        for chunks in (4, 16):
            loss = nce(encode=mean_pooled(), chunks=chunks, **options)
            (other, others), same = _value(loss)(model, batch)
            # The vectors are rounded alike up to 1e-7, and scores multiply that by 5.
            np.testing.assert_allclose(other, value, rtol=2e-6)
            for name in terms:
                np.testing.assert_allclose(others[name][0], terms[name][0], rtol=2e-6, atol=2e-6)
            for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(gradients), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
        square = sum(float((g**2).sum()) for g in jax.tree.leaves(gradients))
        graph, state = nnx.split(model)
        step, values = 1e-2, []
        for sign in (1, -1):
            moved = jax.tree.map(
                lambda w, g, sign=sign: w + sign * step * g, state, nnx.state(gradients)
            )
            x = pooled(nnx.merge(graph, moved), batch)
            total, count = info_nce(x, batch, **options)["info_nce"]
            values.append(total / count)
        # The float32 features round to 1e-7 of a difference of about 0.1; third-order terms.
        np.testing.assert_allclose((values[0] - values[1]) / (2 * step), square, rtol=2e-3)

    def test_memory_is_that_of_a_chunk(self, model):
        batch = rows_of(rows=64, length=64)
        graph, state = nnx.split(model)

        def temporaries(chunks):
            loss = mean_loss(nce(encode=mean_pooled(), chunks=chunks))

            def value(state, batch):
                return loss(nnx.merge(graph, state), batch)[0]

            compiled = jax.jit(jax.grad(value)).lower(state, batch).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        # Attention of 64 rows has 1 MiB per array, that of 4 rows 64 KiB; tokens and vectors stay.
        assert temporaries(16) < temporaries(1) / 6

    def test_the_contract_of_a_trainer(self):
        loss = nce(encode=mean_pooled(), rows=3)
        assert (loss.rows, loss.whole_batch) == (3, True)

    def test_a_positive_that_only_ties_is_not_first(self):
        terms = nce(encode=_linear)(0 * WEIGHT, _numbers(6), key=None)
        assert (float(terms["accuracy"][0]), float(terms["accuracy"][1])) == (0, 3)

    def test_pairs_without_negatives_have_no_similarity_of_them(self):
        batch = _numbers(6) | {"group_ids": np.zeros(6, np.int32)}
        terms = nce(encode=_linear)(WEIGHT, batch, key=None)
        counts = {name: float(term[1]) for name, term in terms.items()}
        assert (counts.pop("similarity_negative"), set(counts.values())) == (0, {3})
        assert float(terms["negatives"][0]) == float(terms["info_nce"][0]) == 0

    def test_the_metrics_have_no_gradient(self):
        def value(w):
            terms = nce(encode=_linear)(w, _numbers(6), key=None)
            return sum(t[0] for t in terms.values() if isinstance(t, Metric))

        np.testing.assert_array_equal(jax.grad(value)(WEIGHT), np.zeros_like(WEIGHT))

    def test_a_row_without_a_token_may_hold_anything(self):
        def value(w, batch):
            return mean_loss(nce(encode=_linear, rows=3, symmetric=True))(w, batch)[0]

        batch = _numbers(12, empty=(3, 8))
        other = batch | {"x": batch["x"].copy()}
        other["x"][[3, 8]] = 1e30
        want, came = (jax.value_and_grad(value)(WEIGHT, b) for b in (batch, other))
        assert want[0] > 0
        jax.tree.map(np.testing.assert_array_equal, came, want)

    def test_fillers_alone_cost_nothing(self):
        def value(w):
            terms = nce(encode=_linear)(w, _numbers(4, empty=(0, 1, 2, 3)), key=None)
            assert float(terms["info_nce"][1]) == 0
            return terms["info_nce"][0]

        value, gradient = jax.value_and_grad(value)(WEIGHT)
        assert float(value) == 0
        np.testing.assert_array_equal(gradient, np.zeros_like(WEIGHT))


@pytest.mark.thorough
class TestTriplet:
    @pytest.mark.parametrize("distance", ["euclidean", "squared", "cosine"])
    def test_rows_are_anchor_positive_and_negative(self, model, distance):
        batch = _batch(18, empty=(4,))
        loss = triplet(encode=mean_pooled(normalize=False), margin=0.3, distance=distance)
        terms = jax.jit(lambda batch: loss(model, batch, key=None))(batch)
        x = pooled(model, batch, normalize=False)
        kept = [0, 2, 3, 4, 5]
        anchor, positive, negative = (x[i::3][kept] for i in range(3))

        def between(a, b):
            if distance == "cosine":
                return 1 - (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
            squares = ((a - b) ** 2).sum(1)
            return squares if distance == "squared" else np.sqrt(squares)

        near, far = between(anchor, positive), between(anchor, negative)
        expected = {
            "triplet": np.maximum(near - far + 0.3, 0),
            "accuracy": near < far,
            "distance_positive": near,
            "distance_negative": far,
        }
        _assert_terms(terms, {name: (x.sum(), 5.0) for name, x in expected.items()})

    def test_mined_rows_equal_float64(self, model):
        batch = _batch(23, ids=6, empty=(4, 9))
        loss = triplet(encode=mean_pooled(), margin=0.1, rows=1)
        terms = jax.jit(lambda batch: loss(model, batch, key=None))(batch)
        _assert_terms(terms, batch_hard(pooled(model, batch), batch, margin=0.1))

    @pytest.mark.parametrize("rows", [1, 3])
    def test_does_not_depend_on_chunks(self, rows):
        batch = _numbers(24, ids=5, empty=(7,))

        def value(w, chunks):
            loss = triplet(encode=_linear, margin=0.2, rows=rows, chunks=chunks)
            return mean_loss(loss)(w, batch)[0]

        want, came = (jax.value_and_grad(value)(WEIGHT, chunks) for chunks in (1, 4))
        np.testing.assert_allclose(came[0], want[0], rtol=2e-6)
        # Sums over 24 rows in another order.
        np.testing.assert_allclose(came[1], want[1], rtol=1e-4, atol=2e-6)

    def test_only_mining_needs_the_whole_batch(self):
        given = triplet(encode=mean_pooled(), margin=0.2)
        mined = triplet(encode=mean_pooled(), margin=0.2, rows=1)
        assert (given.rows, given.whole_batch) == (3, False)
        assert (mined.rows, mined.whole_batch) == (1, True)


class TestMeanPooled:
    @pytest.mark.thorough
    def test_averages_the_tokens_of_a_row(self, model):
        batch = _batch(7, empty=(2,))
        for normalize in (True, False):
            x = mean_pooled(normalize=normalize)(model, batch)
            # float32 sums of 9 features.
            expected = pooled(model, batch, normalize=normalize)
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)

    def test_averages_all_tokens_without_segments(self, model):
        tokens = _batch(5)["tokens"]
        whole = {"tokens": tokens, "segment_ids": np.ones_like(tokens)}
        x = mean_pooled()(model, {"tokens": tokens})
        np.testing.assert_allclose(x, pooled(model, whole), rtol=1e-5, atol=1e-6)

    @pytest.mark.thorough
    def test_averages_the_tokens_of_a_field(self, model):
        batch = _batch(5)
        x = mean_pooled(mask="mask", normalize=False)(model, batch)
        options = {n: batch[n] for n in ("positions", "segment_ids")}
        features = np.asarray(model.features(jnp.asarray(batch["tokens"]), **options)[0])
        expected = [
            row[mask > 0].mean(0) for row, mask in zip(features, batch["mask"], strict=True)
        ]
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.thorough
    def test_takes_encoders_and_passes_attention(self, model):
        class Encoder(nnx.Module):
            """Returns the features alone, as encoders do."""

            def features(self, tokens, *, positions, segment_ids, attention=None):
                x = model.features(tokens, positions=positions, segment_ids=segment_ids)[0]
                return (x if attention is None else -x).astype(jnp.bfloat16)

        batch = _batch(5)
        x = mean_pooled()(Encoder(), batch)
        assert x.dtype == jnp.float32
        # The features have 8 bits.
        np.testing.assert_allclose(x, pooled(model, batch), atol=2e-2)
        other = mean_pooled(attention=lambda q: q)(Encoder(), batch)
        np.testing.assert_array_equal(other, -x)

    def test_padding_may_hold_nan(self, model):
        class Nan(TinyDecoder):
            def features(self, tokens, *, segment_ids, **options):
                x, _ = super().features(tokens, segment_ids=segment_ids, **options)
                return jnp.where(segment_ids[..., None] > 0, x, jnp.nan), None

        batch = {name: jnp.asarray(x) for name, x in _batch(5).items()}
        assert (batch["segment_ids"] == 0).any()
        assert np.isfinite(mean_pooled()(Nan(rngs=nnx.Rngs(0)), batch)).all()

    def test_packed_rows_are_refused(self, model):
        batch = _batch(5)
        batch["segment_ids"][3, 4:] = 2
        with pytest.raises(
            ValueError, match=r"a row must be one text, got segment_ids up to 2 in row 3; do not pa"
        ):
            mean_pooled()(model, batch)
        x = jax.jit(lambda batch: mean_pooled()(model, batch))(batch)
        assert np.isnan(x).all(axis=1).tolist() == [False, False, False, True, False]


@pytest.mark.usefixtures("unchecked")
class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda e: nce(encode=e, temperature=-1.0), r"above 0, got temperature=-1.0; pass"),
            (lambda e: nce(encode=e, rows=4), r"rows must be 2 .*or 3 .*got rows=4; pass rows=2"),
            (lambda e: nce(encode=e, chunks=0), r"at least 1, got chunks=0; pass 1 for no parts"),
            (lambda e: triplet(encode=e, margin=0.0), r"margin must be above 0, .*got margin=0.0"),
            (
                lambda e: triplet(encode=e, margin=1.0, rows=2),
                r"rows must be 3 .*or 1 .*got rows=2; pass rows=3",
            ),
            (
                lambda e: triplet(encode=e, margin=1.0, distance="l1"),
                r"one of euclidean, .*got distance='l1'; pass distance='euclidean'",
            ),
            (
                lambda e: triplet(encode=e, margin=1.0, chunks=-2),
                r"at least 1, got chunks=-2; pass 1",
            ),
        ],
    )
    def test_options_out_of_range(self, make, message):
        with pytest.raises(ValueError, match=message):
            make(mean_pooled())

    @pytest.mark.parametrize("make", [nce, lambda encode: triplet(encode=encode, margin=1.0)])
    def test_an_encoder_that_is_no_function(self, make):
        with pytest.raises(
            TypeError, match=r"a function of \(model, batch\), got 'mean'; pass .*mean_pooled\(\)"
        ):
            make(encode="mean")

    @pytest.mark.parametrize(
        "encode",
        [
            lambda model, batch: model.features(jnp.asarray(batch["tokens"]))[0],
            lambda model, batch: jnp.zeros((3, 16)),
            lambda model, batch: jnp.zeros((4, 16), jnp.int32),
        ],
    )
    def test_an_encoder_that_returns_no_vectors(self, model, encode):
        with pytest.raises(
            TypeError, match=r"float\[4, D\], got \w+\[[\d, ]+\]; pool the features, .*mean_pooled"
        ):
            nce(encode=encode)(model, _batch(4), key=None)

    @pytest.mark.parametrize(
        ("options", "rows", "message"),
        [
            ({"rows": 2}, 7, r"whole groups of 2 rows, at least 2, got 7 rows; pass for example 8"),
            ({"rows": 2}, 2, r"whole groups of 2 rows, at least 2, got 2 rows; pass for example 4"),
            ({"rows": 3}, 5, r"whole groups of 3 rows, at least 1, got 5 rows; pass for example 6"),
            ({"chunks": 4}, 12, r"got rows=12, chunks=4; pass a divisor of 6 as chunks"),
        ],
    )
    def test_batches_of_other_sizes(self, model, options, rows, message):
        with pytest.raises(ValueError, match=message):
            nce(encode=mean_pooled(), **options)(model, _batch(rows), key=None)

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"group_ids": np.zeros((4, 2), np.int32)},
                r"group_ids must be i32\[B\], .*int32\[4, 2",
            ),
            (
                {"weight": np.zeros(3)},
                r"one number of rows, got .*'weight': 3.*; leave out the fie",
            ),
            ({"tokens": None}, r"mean_pooled needs tokens in the batch, got .*; add the field"),
            ({"segment_ids": None}, r"needs segment_ids in a batch with a mask, got .*; add segm"),
        ],
    )
    def test_batches_of_other_fields(self, model, change, message):
        batch = {k: v for k, v in (_batch(4) | change).items() if v is not None}
        with pytest.raises(ValueError, match=message):
            nce(encode=mean_pooled())(model, batch, key=None)

    @pytest.mark.parametrize("axis", ["data", "fsdp", "expert"])
    def test_chunks_that_leave_devices_without_a_group(self, axis):
        loss = nce(encode=_linear, chunks=4)
        mesh = AbstractMesh((8,), (axis,))
        with (
            jax.sharding.use_abstract_mesh(mesh),
            pytest.raises(
                ValueError, match=r"the 8 devices .* 16 groups in chunks=4; pass a divisor of 2 as"
            ),
        ):
            jax.eval_shape(lambda batch: loss(WEIGHT, batch, key=None), _numbers(32))

    def test_a_mask_that_is_no_field(self, model):
        with pytest.raises(ValueError, match=r"mean_pooled needs answer in the batch, got .*; add"):
            mean_pooled(mask="answer")(model, _batch(4))

    def test_mining_without_classes(self, model):
        with pytest.raises(ValueError, match=r"needs group_ids i32\[B\] .*; add the class of each"):
            triplet(encode=mean_pooled(), margin=1.0, rows=1)(model, _batch(4), key=None)

    def test_models_without_features(self):
        with pytest.raises(TypeError, match=r"a model with features, got Linear; pass an encoder"):
            mean_pooled()(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), _batch(4))


@pytest.mark.thorough
def test_on_eight_devices(on_eight_devices):
    on_eight_devices("embeddings_sharded.py")
