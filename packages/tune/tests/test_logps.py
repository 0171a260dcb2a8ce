# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from batches import rows_of
from flax import nnx

from dovetail_tune import TokenLogps, token_logps
from dovetail_tune.testing import TinyDecoder


@pytest.fixture(scope="module", params=[None, 3.0], ids=["plain", "soft_cap"])
def model(request):
    return TinyDecoder(depth=2, soft_cap=request.param, rngs=nnx.Rngs(3))


def _full(x, w, labels, *, where, soft_cap, temperature):
    """The operation of dovetail_kernels, from all logits."""
    logits = x @ w
    logits = logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)
    log_p = jax.nn.log_softmax(logits / temperature)
    picked = jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]
    entropy = -(jnp.exp(log_p) * log_p).sum(1)
    return jnp.where(where, picked, 0), jnp.where(where, entropy, 0)


@pytest.mark.capability("log-probabilities without logits in memory")
@pytest.mark.parametrize("chunk", [1, 7, 20, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_equal_float64(model, chunk, temperature):
    batch = rows_of(rows=5, length=13, seed=1)
    logps = token_logps(model, batch, temperature=temperature, entropy=True, chunk=chunk)
    expected = oracle.token_logps(model, batch, temperature=temperature)
    # 32 logits of float32, from features that both share.
    np.testing.assert_allclose(logps.logprob, expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(logps.entropy, expected[1], rtol=2e-6, atol=2e-6)


def _gradients(model, batch, **options):
    rng = np.random.default_rng(0)
    by_token = rng.normal(size=(2, *batch["mask"].shape)).astype(np.float32)

    def total(model):
        logps = token_logps(model, batch, entropy=True, **options)
        return (by_token[0] * logps.logprob).sum() + (by_token[1] * logps.entropy).sum()

    return jax.tree.leaves(nnx.grad(total)(model))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"chunk": 3}, {"chunk": 26}, {"logprobs": _full}])
def test_gradients_equal_those_of_all_logits(model, options):
    batch = rows_of(rows=3, length=13, seed=2)
    for own, whole in zip(
        _gradients(model, batch, **options), _gradients(model, batch), strict=True
    ):
        # Sums over 39 tokens in another order.
        np.testing.assert_allclose(own, whole, rtol=1e-4, atol=2e-6)


@pytest.mark.thorough
def test_an_injected_operation_gets_head_weight_and_soft_cap(model):
    batch = rows_of(rows=3, seed=3)
    own = token_logps(model, batch, entropy=True)
    given = token_logps(model, batch, entropy=True, logprobs=_full)
    np.testing.assert_allclose(given.logprob, own.logprob, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(given.entropy, own.entropy, rtol=2e-6, atol=2e-6)
    assert token_logps(model, batch, logprobs=_full).entropy is None


@pytest.mark.thorough
def test_a_bfloat16_head_is_normalised_in_float32():
    model = TinyDecoder(rngs=nnx.Rngs(0))
    nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(model)))
    batch = rows_of(rows=2, seed=4)
    logps = token_logps(model, batch, entropy=True)
    assert logps.logprob.dtype == logps.entropy.dtype == jnp.float32


class TestMaskedTokens:
    @pytest.mark.thorough
    def test_nan_features_reach_neither_values_nor_gradients(self):
        class Nan(TinyDecoder):
            def features(self, tokens, **options):
                x, _ = super().features(tokens, **options)
                return jnp.where((jnp.arange(tokens.shape[1]) < 2)[None, :, None], jnp.nan, x), None

        model, batch = Nan(rngs=nnx.Rngs(0)), rows_of(rows=3, seed=5)
        batch["mask"][:, :2] = 0
        assert np.isfinite(token_logps(model, batch, entropy=True).logprob).all()
        head = nnx.grad(lambda model: token_logps(model, batch).logprob.sum())(model)["out"]
        assert np.isfinite(head["kernel"][...]).all()

    @pytest.mark.thorough
    def test_any_target_may_stand_there(self, model):
        batch = rows_of(rows=3, seed=6)
        other = np.where(batch["mask"] > 0, batch["targets"], -100).astype(np.int32)
        np.testing.assert_array_equal(
            token_logps(model, batch).logprob,
            token_logps(model, batch | {"targets": other}).logprob,
        )

    @pytest.mark.parametrize("target", [-1, 32])
    def test_a_target_outside_the_vocabulary_that_counts_is_nan(self, model, target):
        batch = rows_of(rows=2, seed=7)
        i = int(batch["mask"][1].argmax())
        batch["targets"][1, i] = target
        logps = token_logps(model, batch).logprob
        assert np.argwhere(np.isnan(logps)).tolist() == [[1, i]]


@pytest.mark.thorough
def test_entropy_of_impossible_tokens_is_finite():
    class Impossible(TinyDecoder):
        def head(self, x):
            return super().head(x).at[..., :5].set(-jnp.inf)

    model, batch = Impossible(rngs=nnx.Rngs(0)), rows_of(rows=2, seed=8)
    entropy = nnx.value_and_grad(
        lambda model: token_logps(model, batch, entropy=True).entropy.sum()
    )
    value, gradients = entropy(model)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_length():
    model = TinyDecoder(vocab_size=4096, width=8, depth=0, rngs=nnx.Rngs(0))

    def temporaries(length: int, chunk: int) -> int:
        batch = rows_of(rows=2, length=length, vocab=4096)
        score = functools.partial(token_logps, chunk=chunk)
        compiled = (
            nnx.jit(nnx.grad(lambda model, batch: score(model, batch).logprob.sum()))
            .lower(model, batch)
            .compile()
        )
        return compiled.compiled.memory_analysis().temp_size_in_bytes

    # A position has 16 KiB of logits, and 32 bytes of features, in ten arrays of both passes.
    added = temporaries(2048, 64) - temporaries(256, 64)
    assert added < 2 * (2048 - 256) * 10 * 32
    assert temporaries(256, 10**6) > 3 * temporaries(256, 64)


@pytest.mark.parametrize("change", ["eager", "jit", "vmap", "scan"])
def test_under_transformations(model, change):
    batch = {name: jnp.asarray(x) for name, x in rows_of(rows=4, seed=9).items()}
    expected = oracle.token_logps(model, batch)[0]

    def score(batch) -> TokenLogps:
        return token_logps(model, batch, chunk=8)

    by_row = jax.tree.map(lambda x: x[:, None], batch)
    logps = {
        "eager": lambda: score(batch).logprob,
        "jit": lambda: jax.jit(score)(batch).logprob,
        "vmap": lambda: jax.vmap(score)(by_row).logprob[:, 0],
        "scan": lambda: jax.lax.scan(lambda _, b: (None, score(b)), None, by_row)[1].logprob[:, 0],
    }[change]()
    np.testing.assert_allclose(logps, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"temperature must be above 0 .*temperature=0.0, .*; leave them"),
        ({"temperature": -1.0}, r"temperature must be above 0 .*temperature=-1.0, .*; leave"),
        ({"chunk": 0}, r"chunk at least 1, got .*chunk=0; leave them out for 1.0 and 1024"),
    ],
)
def test_options_out_of_range(model, options, message):
    with pytest.raises(ValueError, match=message):
        token_logps(model, rows_of(rows=2), **options)


def test_missing_fields_and_other_models(model):
    batch = rows_of(rows=2)
    del batch["mask"]
    with pytest.raises(ValueError, match=r"must have tokens, targets and mask, got .*; add mask"):
        token_logps(model, batch)
    with pytest.raises(TypeError, match=r"needs a decoder with features .*got Linear; pass"):
        token_logps(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), rows_of(rows=2))
