# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import rows_of
from flax import nnx
from jax.sharding import AbstractMesh

from dovetail_tune import RewardModel
from dovetail_tune.testing import TinyDecoder

LENGTH = 9


@pytest.fixture(scope="module")
def model():
    rngs = nnx.Rngs(1)
    return RewardModel(TinyDecoder(depth=2, rngs=rngs), nnx.Linear(16, 1, rngs=rngs))


@pytest.fixture(scope="module")
def batch():
    """Rows of 4 to 9 slots; the first is full."""
    batch = rows_of(rows=5, length=LENGTH, seed=3)
    full = rows_of(rows=1, length=LENGTH, seed=0)
    assert full["segment_ids"].all()
    joined = {name: np.concatenate([full[name], x]) for name, x in batch.items()}
    joined["targets"][joined["segment_ids"] == 0] = -100  # what is not read may be anything
    return joined


@nnx.jit
def _read(model, batch):
    return model.after_targets(batch), model.scores(batch)


def _alone(model, batch, row):
    """The values after each target of a row: of its ids, without padding, as a row of their own."""
    n = int(batch["segment_ids"][row].sum())
    ids = [batch["tokens"][row, 0], *batch["targets"][row, :n]]
    x = model.decoder.features(jnp.asarray(ids, jnp.int32)[None])[0]
    kernel, bias = (np.asarray(y, np.float64) for y in (model.head.kernel, model.head.bias))
    return (np.asarray(x, np.float64) @ kernel + bias)[0, 1:, 0]


@pytest.mark.thorough
def test_values_and_scores_are_those_of_each_text_alone(model, batch):
    values, scores = _read(model, batch)
    assert values.dtype == scores.dtype == jnp.float32
    for row in range(6):
        expected = _alone(model, batch, row)
        # Attention over 10 positions in another order of float32.
        options = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(values[row, : len(expected)], expected, **options)
        assert not values[row, len(expected) :].any()
        np.testing.assert_allclose(scores[row], expected[-1], **options)


class _Placed(TinyDecoder):
    """A decoder with learned vectors of LENGTH positions: NaN past them, spread by attention."""

    def features(self, tokens, *, positions, **options):
        x, _ = super().features(tokens, positions=positions, **options)
        past = (positions >= LENGTH).any(axis=1)
        return jnp.where(past[:, None, None], jnp.nan, x), None


@pytest.mark.thorough
def test_padding_takes_no_position_past_the_last_of_the_model(model, batch):
    rngs = nnx.Rngs(1)
    placed = RewardModel(_Placed(depth=2, rngs=rngs), nnx.Linear(16, 1, rngs=rngs))
    scores = np.asarray(_read(placed, batch)[1])
    full = batch["segment_ids"].all(axis=1)
    assert np.isnan(scores[full]).all()  # their last id has no position
    np.testing.assert_array_equal(scores[~full], np.asarray(_read(model, batch)[1])[~full])


def test_devices_that_share_positions_hold_equally_many(model, batch):
    lengths = []

    class Counted(TinyDecoder):
        def features(self, tokens, **options):
            lengths.append(tokens.shape[1])
            return super().features(tokens, **options)

    rngs = nnx.Rngs(1)
    counted = RewardModel(Counted(depth=2, rngs=rngs), nnx.Linear(16, 1, rngs=rngs))
    with jax.sharding.use_abstract_mesh(AbstractMesh((4,), ("context",))):
        shapes = jax.eval_shape(lambda batch: counted.after_targets(batch), batch)
    assert (lengths, shapes.shape) == ([12], (6, LENGTH))  # 9 slots have 10 ids


@pytest.mark.thorough
def test_a_call_values_tokens_as_the_decoder_places_them(model, batch):
    options = {name: batch[name] for name in ("positions", "segment_ids")}
    values = model(batch["tokens"], **options)
    x = np.asarray(model.decoder.features(jnp.asarray(batch["tokens"]), **options)[0], np.float64)
    expected = x @ np.asarray(model.head.kernel, np.float64)[:, 0] + float(model.head.bias[0])
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    # The values of tokens but the first are those after targets.
    after = model.after_targets(batch)
    inside = batch["segment_ids"][:, 1:] > 0
    np.testing.assert_allclose(after[:, :-1][inside], values[:, 1:][inside], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_without_segment_ids_a_text_fills_its_row(model, batch):
    part = {name: batch[name][:1] for name in ("tokens", "targets")}
    np.testing.assert_allclose(
        model.scores(part), _alone(model, batch, 0)[-1:], rtol=1e-4, atol=1e-5
    )


@pytest.mark.thorough
def test_both_parts_are_trained(model, batch):
    gradients = nnx.jit(nnx.grad(lambda model: model.scores(batch).sum()))(model)
    for part in ("decoder", "head"):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients[part]))
        assert any(np.any(x) for x in jax.tree.leaves(gradients[part]))
    np.testing.assert_allclose(gradients["head"]["bias"][...], [6.0])


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["function", "one dimension less"])
def test_heads_that_are_no_layer(model, batch, form):
    weight = np.random.default_rng(0).normal(size=16).astype(np.float32)
    heads = {
        "function": lambda x: (x * weight[None, None]).sum(-1, keepdims=True),
        "one dimension less": lambda x: (x * weight[None, None]).sum(-1).astype(jnp.bfloat16),
    }
    values = RewardModel(model.decoder, heads[form])(batch["tokens"])
    x = np.asarray(model.decoder.features(jnp.asarray(batch["tokens"]))[0], np.float64)
    assert values.dtype == jnp.float32
    tolerance = 1e-5 if form == "function" else 0.02  # bfloat16 has 8 bits
    np.testing.assert_allclose(values, x @ weight, rtol=tolerance, atol=tolerance)


@pytest.mark.thorough
def test_an_empty_row_scores_nothing_and_has_no_gradient(model, batch):
    batch = {name: x.copy() for name, x in batch.items()}
    batch["segment_ids"][2] = 0
    assert model.scores(batch)[2] == 0
    gradients = nnx.jit(nnx.grad(lambda model: model.scores(batch)[2]))(model)
    assert not any(np.any(x) for x in jax.tree.leaves(gradients))


class TestPackedRows:
    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("ids", "named"),
        [([1, 1, 1, 2, 2, 2, 2, 0, 0], r"\[0, 1, 2\]"), ([0, 0] + [1] * 7, r"\[0, 1\]")],
        ids=["two texts", "padding first"],
    )
    def test_are_refused_by_row_and_are_nan_in_a_program(self, model, batch, ids, named):
        batch = {name: x.copy() for name, x in batch.items()}
        batch["segment_ids"][4] = ids
        message = rf"one text from its first slot on.*, got segment_ids={named} in row 4; make rows"
        with pytest.raises(ValueError, match=message):
            model.scores(batch)
        values, scores = _read(model, batch)
        assert np.flatnonzero(np.isnan(scores)).tolist() == [4]
        assert np.flatnonzero(np.isnan(values).any(1)).tolist() == [4]


@pytest.mark.thorough
def test_missing_fields_and_other_models(model, batch):
    with pytest.raises(ValueError, match=r"tokens and targets, got \['mask', 'tokens'\]; add targ"):
        model.scores({name: batch[name] for name in ("tokens", "mask")})
    wide = RewardModel(model.decoder, nnx.Linear(16, 2, rngs=nnx.Rngs(0)))
    message = r"each token, \[6, 9, 1\], got head\(features\)=float32\[6, 9, 2\]; .*Linear\(16, 1"
    with pytest.raises(ValueError, match=message):
        wide(batch["tokens"])
    linear = nnx.Linear(16, 1, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"decoder with features .*decoder=Linear, head=Linear; wr"):
        RewardModel(linear, linear)


@pytest.mark.usefixtures("unchecked")
def test_a_head_that_cannot_be_called(model):
    with pytest.raises(TypeError, match=r"a head to call, got decoder=TinyDecoder, head=NoneType;"):
        RewardModel(model.decoder, None)
