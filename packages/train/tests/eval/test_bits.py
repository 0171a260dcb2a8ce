# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import BitsPerByte, Eval, Precision, Trainer, lm_loss


class _Unigram(nnx.Module):
    """The same distribution at every position: bits can be added up by hand."""

    def __init__(self, probabilities):
        self.logits = nnx.Param(jnp.log(jnp.asarray(probabilities, jnp.float32)))
        self.drop = nnx.Dropout(0.9, rngs=nnx.Rngs(0))

    def features(self, tokens, **options):
        return self.drop(jnp.ones((*tokens.shape, 1))), None

    def head(self, x):
        return x * self.logits[...]


P = np.array([0.5, 0.25, 0.125, 0.125])  # 1, 2, 3 and 3 bits
BYTES = np.array([1, 3, 4, 0])  # the last is a special token


def _batch(targets, mask):
    targets = np.asarray(targets, np.int32)
    return {"tokens": np.zeros_like(targets), "targets": targets, "mask": np.asarray(mask, "f4")}


BATCHES = [
    _batch([[0, 1, 2], [3, 0, 99]], [[1, 1, 1], [1, 0, 0]]),  # 1+2+3+3 bits of 1+3+4+0 bytes
    _batch([[2, 2, 0]], [[1, 1, 1]]),  # 3+3+1 bits of 4+4+1 bytes
]


def _evaluate(hook, trainer=None, model=None):
    trainer = trainer or Trainer(optax.sgd(0.0), lm_loss())
    return hook(trainer, trainer.init(model or _Unigram(P)), 10)


def test_bits_per_byte_is_all_bits_over_all_bytes():
    hook = Eval(BATCHES, every=5, metrics={"bpb": BitsPerByte(BYTES), "nats": lm_loss(z=1e-3)})
    values = _evaluate(hook)
    assert values["eval/bpb"] == pytest.approx(16 / 17, rel=1e-6)
    assert values["eval/nats/nll"] == pytest.approx(16 * np.log(2) / 7, rel=1e-6)
    assert set(values) == {"eval/bpb", "eval/nats/nll", "eval/nats/z"}


@pytest.mark.thorough
def test_an_evaluation_repeats_itself_and_changes_nothing():
    hook = Eval(BATCHES, every=1, metrics={"bpb": BitsPerByte(BYTES)})
    trainer = Trainer(optax.sgd(0.0), lm_loss())
    state = trainer.init(_Unigram(P))
    before = jax.tree.map(np.asarray, (state.params, state.rest["drop"]["rngs"]["count"]))
    assert hook(trainer, state, 3) == hook(trainer, state, 3)
    after = jax.tree.map(np.asarray, (state.params, state.rest["drop"]["rngs"]["count"]))
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.thorough
def test_an_evaluation_computes_in_the_trainers_precision():
    model = _Unigram(P)
    model.logits[...] = model.logits[...] + jnp.array([0.0, 1.0, 0.0, 0.0]) / 1000
    hook = Eval(BATCHES, every=1, metrics={"nats": lm_loss()})
    trainer = Trainer(optax.sgd(0.0), lm_loss(), precision=Precision(compute="bfloat16"))
    rounded = _Unigram(P)
    rounded.logits[...] = model.logits[...].astype(jnp.bfloat16).astype(jnp.float32)
    assert _evaluate(hook, trainer, model) == _evaluate(hook, model=rounded)
    assert _evaluate(hook, trainer, model) != _evaluate(hook, model=model)


def test_sums_of_many_batches_are_not_rounded_to_float32():
    def loss(model, batch, *, key):
        return batch["mask"].sum(), jnp.float32(1)

    # 2**24 + 1 is no float32; adding ones one by one would stop at 2**24.
    batches = [_batch([[0]], [[2.0**24]]), _batch([[0]], [[1]]), _batch([[0]], [[1]])]
    assert _evaluate(Eval(batches, every=1, metrics={"x": loss})) == {"eval/x": (2**24 + 2) / 3}


@pytest.mark.thorough
def test_the_averages_can_be_evaluated_too():
    trainer = Trainer(optax.sgd(1.0), lm_loss(), ema=0.5)
    targets = _batch([[3] * 40], [[1] * 40])  # dropout takes most
    state, _ = trainer.step(trainer.init(_Unigram(P)), targets)
    plain, options = _Unigram(P), {"every": 1, "metrics": {"nats": lm_loss()}}
    plain.logits[...] = state.ema["logits"]
    averaged = Eval(BATCHES, **options, ema=True)(trainer, state, 1)
    want = _evaluate(Eval(BATCHES, **options), model=plain)
    assert averaged == {"eval_ema/nats": want["eval/nats"]}
    assert want != Eval(BATCHES, **options)(trainer, state, 1)


def test_results_go_to_the_sinks_and_do_not_count_as_training():
    lines = []

    class Sink:
        def write(self, step, scalars):
            lines.append((step, dict(scalars)))

    hook = Eval(BATCHES, every=2, metrics={"bpb": BitsPerByte(BYTES)})
    trainer = Trainer(optax.sgd(0.0), lm_loss())
    result = trainer.fit(_Unigram(P), [BATCHES[1]] * 5, steps=5, sinks=[Sink()], hooks=[hook])
    assert [step for step, scalars in lines if "eval/bpb" in scalars] == [2, 4]
    assert result.seconds["hooks"] > 0
    training = sum(scalars.get("step_time_s", 0) for _, scalars in lines)
    assert training <= result.seconds["step"] + result.seconds["data"]


def test_batches_that_can_be_read_once_are_refused():
    with pytest.raises(
        ValueError, match=r"must give the same.*got an iterator list_iter.*pass a l"
    ):
        Eval(iter(BATCHES), every=1, metrics={"x": lm_loss()})


@pytest.mark.parametrize("every, metrics", [(0, {"x": lm_loss()}), (1, {})])
def test_an_evaluation_that_never_says_anything_is_refused(every, metrics):
    with pytest.raises(
        ValueError, match=r"at least 1 and metrics not empty, got every=.*write Eval"
    ):
        Eval(BATCHES, every=every, metrics=metrics)


def test_no_batches_are_refused():
    with pytest.raises(ValueError, match=r"must give at least one.*none at step 10; pass held-out"):
        _evaluate(Eval([], every=1, metrics={"x": lm_loss()}))


def test_a_mask_of_zeros_has_no_mean():
    hook = Eval([_batch([[0]], [[0]])], every=1, metrics={"x": lm_loss()})
    with pytest.raises(
        ValueError, match=r"must not all be 0, got x count=0 at step 10; check the m"
    ):
        _evaluate(hook)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [np.ones((2, 2), int), np.array([], int), np.array([1, -1])])
def test_token_bytes_are_counts(wrong):
    with pytest.raises(ValueError, match=r"must be one count >= 0.*got shape.*give 0 for special"):
        BitsPerByte(wrong)


def test_a_held_out_batch_that_would_split_a_group_is_refused():
    def pairs(model, batch, *, key):
        return batch["mask"].sum(), jnp.float32(1)

    pairs.rows = 2
    hook = Eval(BATCHES, every=1, metrics={"bpb": BitsPerByte(BYTES), "pairs": pairs})
    with pytest.raises(
        ValueError, match=r"rows of the metrics, 2, got rows=1 at step 10; pass .* 2 r"
    ):
        _evaluate(hook)
    values = _evaluate(Eval(BATCHES[:1], every=1, metrics={"pairs": pairs}))
    assert values == {"eval/pairs": 4.0}
