# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What `lm_loss` measures or adds beside the loss of the tokens: sources, the experts' balance."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Metric, Trainer, lm_loss
from dovetail_train.testing import TinyDecoder

VOCAB, ROWS, LENGTH = 11, 8, 7
NAMES = ("code", "math", "web")


class _Balance(NamedTuple):
    load: jax.Array
    total: jax.Array
    sequences: jax.Array


class _Routed(TinyDecoder):
    """Two layers of routers, each with a row's balance as a function of its features."""

    def features(self, tokens, *, taps=(), **options):
        x, _ = super().features(tokens, **options)
        scale = jnp.array([1.0, 3.0])
        total = (x**2).mean((1, 2)).sum() * scale
        found = _Balance(jnp.zeros((2, 4), int), total, jnp.full(2, float(tokens.shape[0])))
        return x, None, *([{"router": found}] if taps == ("router",) else [])


def _model(kind=TinyDecoder):
    return kind(vocab_size=VOCAB, width=8, depth=1, rngs=nnx.Rngs(0))


def _batch(seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, (ROWS, LENGTH + 1), dtype=np.int32)
    return {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "mask": (rng.random((ROWS, LENGTH)) < 0.6).astype("f4"),
        "source": np.array([2, 0, 2, 2, 0, 2, 0, 0], np.int32),  # no math
    }


def _nll(model, batch):
    logits = np.asarray(model.head(model.features(batch["tokens"])[0]), np.float64)
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logps, batch["targets"][..., None], -1)[..., 0]


@pytest.mark.thorough
@pytest.mark.parametrize("accumulate, chunk", [(1, None), (1, 16), (4, None)])
def test_each_source_has_a_loss_of_its_own(accumulate, chunk):
    model, batch = _model(), _batch()
    loss = lm_loss(sources=NAMES, chunk=chunk)
    trainer = Trainer(optax.sgd(1.0), loss, accumulate=accumulate)
    state, metrics = trainer.step(trainer.init(model), batch)
    scalars, nll = metrics.read(), _nll(model, batch)
    for i in (0, 2):
        mine = batch["mask"] * (batch["source"] == i)[:, None]
        want = (mine * nll).sum() / mine.sum()
        # Sums of at most 56 terms of float32 logits, which are of a width of 8.
        np.testing.assert_allclose(scalars[f"loss/source/{NAMES[i]}"], want, rtol=1e-5)
        assert scalars[f"count/source/{NAMES[i]}"] == mine.sum()
    assert scalars["count/source/math"] == 0
    assert "loss/source/math" not in scalars
    assert scalars["loss"] == scalars["loss/nll"]
    plain = Trainer(optax.sgd(1.0), lm_loss(chunk=chunk), accumulate=accumulate)
    want, _ = plain.step(plain.init(model), batch)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_source_without_a_name_is_seen(wrong):
    model, batch = _model(), _batch()
    batch["source"][1] = wrong
    terms = lm_loss(sources=NAMES)(model, batch, key=None)
    assert all(np.isnan(terms[f"source/{name}"].sum) for name in NAMES)
    assert np.isfinite(terms["nll"][0])


@pytest.mark.costly("no smaller test has a metric among the terms")
def test_the_balance_is_the_mean_over_sequences_and_layers():
    model, batch = _model(_Routed), _batch()
    x, _ = model.features(batch["tokens"])
    terms = lm_loss(balance=True)(model, batch, key=None)
    total, count = terms["balance"]
    per_row = (np.asarray(x, np.float64) ** 2).mean((1, 2))
    np.testing.assert_allclose(total / count, np.mean([per_row.mean(), 3 * per_row.mean()]), 1e-5)
    assert not isinstance(terms["balance"], Metric)


@pytest.mark.parametrize("balance", [False, True])
def test_what_records_is_given_the_model_and_its_router(balance):
    calls = []
    loss = lm_loss(balance=balance, record=lambda model, router: calls.append((model, router)))
    model, batch = _model(_Routed), _batch()
    terms = loss(model, batch, key=None)
    ((recorded, router),) = calls
    assert recorded is model
    assert (router.load.shape, router.total.shape) == ((2, 4), (2,))
    want = lm_loss(balance=balance)(model, batch, key=None)
    jax.tree.map(np.testing.assert_array_equal, terms, want)


@pytest.mark.thorough
def test_microbatches_do_not_change_the_gradient_of_the_balance():
    def step(accumulate, weights):
        loss = lm_loss(balance=True, z=1e-3)
        trainer = Trainer(optax.sgd(1.0), loss, weights=weights, accumulate=accumulate)
        state, metrics = trainer.step(trainer.init(_model(_Routed)), _batch())
        return jax.tree.leaves(state.params), metrics.read()

    whole, scalars = step(1, {"balance": 0.5})
    parts, again = step(4, {"balance": 0.5})
    without, _ = step(1, {"balance": 0.0})
    assert scalars.keys() == again.keys() >= {"loss/balance", "loss/z", "loss/nll"}
    for name, value in scalars.items():
        assert again[name] == pytest.approx(value, rel=1e-5), name
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # sums in another order
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(whole, without, strict=True))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"must be names, each once, got sources='web'; write"):
        lm_loss(sources="web")
    with pytest.raises(ValueError, match=r"each once, got sources=\('a', 'a'\)"):
        lm_loss(sources=("a", "a"))
    with pytest.raises(ValueError, match=r"of which cross_entropy gives the sum alone.*leave one"):
        lm_loss(sources=("a",), cross_entropy=lambda *args, **options: None)
    batch = {name: x for name, x in _batch().items() if name != "source"}
    with pytest.raises(ValueError, match=r"needs a batch with source i32\[B\], got .*; add it, or"):
        lm_loss(sources=("a",))(_model(), batch, key=None)
