# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A field, a frozen twin and a model without its adapters are one reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of
from flax import nnx

from dovetail_tune import (
    TRAINED,
    AdaptersOff,
    Field,
    Frozen,
    Twin,
    dpo,
    mean_loss,
    token_logps,
    with_reference,
)
from dovetail_tune.reference import policy_of, reference_logps, without_adapters
from dovetail_tune.testing import TinyDecoder

REFERENCES = [Field(), Frozen(), AdaptersOff()]
BATCH = pairs_of(pairs=2, seed=3)


class Scaled(nnx.Module):
    """A linear layer beside a bottleneck of its own: y = base(x) + scale * (x a) b."""

    def __init__(self, base, *, scale, rngs):
        width, out = base.kernel.shape
        self.base, self.scale = base, scale
        self.a = nnx.LoRAParam(jax.random.normal(rngs.params(), (width, 2)))
        self.b = nnx.LoRAParam(jax.random.normal(rngs.params(), (2, out)))

    @property
    def kernel(self):
        return self.base.kernel

    def __call__(self, x):
        return self.base(x) + self.scale * ((x @ self.a[...]) @ self.b[...])


def _with_flax(linear, rngs):
    width, out = linear.kernel.shape
    adapted = nnx.LoRA(width, 2, out, base_module=linear, rngs=rngs)
    adapted.lora_b[...] = jax.random.normal(rngs.params(), (2, out))
    return adapted


def _with_own(linear, rngs):
    return Scaled(linear, scale=0.5, rngs=rngs)


def _adapted(base, adapt):
    """Returns a copy with adapters that are not 0."""
    adapted, rngs = nnx.clone(base), nnx.Rngs(2)
    for layer in adapted.layers:
        layer.up = adapt(layer.up, rngs)
        layer.down = adapt(layer.down, rngs)
    return adapted


@pytest.fixture(scope="module")
def base():
    return TinyDecoder(rngs=nnx.Rngs(1))


@pytest.fixture(scope="module")
def models(base):
    return base, _adapted(base, _with_own)


def _case(models, reference):
    """Returns the model to train, and its batch."""
    base, adapted = models
    model = Twin(adapted, base) if isinstance(reference, Frozen) else adapted
    batch = next(with_reference([BATCH], base)) if isinstance(reference, Field) else BATCH
    return model, {name: jnp.asarray(x) for name, x in batch.items()}


def _scores(model, batch, reference):
    logps = reference_logps(model, batch, reference, scorer=token_logps)
    return logps if logps.ndim == 1 else logps.sum(1)


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("three references with one result")
@pytest.mark.parametrize("adapt", [_with_flax, _with_own], ids=["nnx.LoRA", "own"])
def test_the_three_references_are_equal_bit_for_bit(base, adapt):
    models, scored = (base, _adapted(base, adapt)), []
    for reference in REFERENCES:
        model, batch = _case(models, reference)
        score = nnx.jit(lambda model, batch, r=reference: _scores(model, batch, r))
        scored.append(np.asarray(score(model, batch)))
    field, frozen, off = scored
    assert frozen.tobytes() == field.tobytes()
    # Adapters of 0 add 0 to every feature, which changes no bit.
    assert off.tobytes() == field.tobytes()
    own = token_logps(models[1], BATCH).logprob.sum(1)
    assert (np.abs(own - field) > 0.1).all()  # the adapters matter


@pytest.mark.thorough
def test_losses_and_gradients_are_equal(models):
    results = []
    for reference in REFERENCES:
        model, batch = _case(models, reference)
        mean = mean_loss(dpo(reference=reference))
        step = nnx.jit(nnx.value_and_grad(lambda model, batch, m=mean: m(model, batch)[0]))
        loss, grads = step(model, batch)
        results.append((loss, grads["trained"] if isinstance(reference, Frozen) else grads))
    for loss, grads in results[1:]:
        np.testing.assert_allclose(loss, results[0][0], rtol=1e-6)
        for own, other in zip(jax.tree.leaves(grads), jax.tree.leaves(results[0][1]), strict=True):
            # Programs that fuse differently: rounding of float32 sums over 48 tokens.
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda r: type(r).__name__)
def test_no_gradient_reaches_the_reference(models, reference):
    model, batch = _case(models, reference)

    def score(model, batch):
        return _scores(model, batch, reference).sum()

    for leaf in jax.tree.leaves(nnx.jit(nnx.grad(score))(model, batch)):
        assert not np.asarray(leaf).any()


class TestTwin:
    def test_two_modules_that_share_a_variable_are_refused(self):
        model = TinyDecoder(rngs=nnx.Rngs(0))
        message = r"without a common Variable, got frozen with .* of trained; pass Twin\(model, nnx"
        with pytest.raises(ValueError, match=message):
            Twin(model, model)
        other = nnx.clone(model)
        other.out = model.out
        with pytest.raises(ValueError, match=r"got frozen with out.kernel of trained"):
            Twin(model, other)

    def test_only_the_trained_module_is_selected(self, models):
        base, adapted = models
        twin = Twin(adapted, base)
        selected = nnx.state(twin, TRAINED)
        assert set(selected) == {"trained"}
        assert len(jax.tree.leaves(selected)) == len(jax.tree.leaves(nnx.state(adapted, nnx.Param)))

    def test_adapters_of_the_trained_module_alone(self, models):
        twin = Twin(models[1], nnx.clone(models[1]))
        selected = nnx.state(twin, nnx.All(nnx.LoRAParam, nnx.PathContains("trained")))
        paths = [path for path, _ in nnx.to_flat_state(selected)]
        assert len(paths) == 4
        assert all(path[0] == "trained" for path in paths)

    @pytest.mark.thorough
    def test_an_optimizer_step_leaves_the_frozen_module(self, models):
        base, adapted = models
        twin = Twin(nnx.clone(adapted), nnx.clone(base))
        mean = mean_loss(dpo(reference=Frozen()))
        wanted = nnx.DiffState(0, TRAINED)
        grads = nnx.jit(nnx.grad(lambda twin: mean(twin, BATCH)[0], argnums=wanted))(twin)
        assert set(grads) == {"trained"}
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))


def test_adapters_off_leaves_the_model_and_shares_its_other_arrays(models):
    adapted = models[1]
    off = without_adapters(adapted)
    assert off.embed.embedding[...] is adapted.embed.embedding[...]
    assert not any(x.any() for x in jax.tree.leaves(nnx.state(off, nnx.LoRAParam)))
    assert all(x.any() for x in jax.tree.leaves(nnx.state(adapted, nnx.LoRAParam)))


@pytest.mark.thorough
def test_a_field_of_tokens_equals_one_of_rows(models):
    base, adapted = models
    by_row, by_token = (
        next(with_reference([BATCH], base, per_token=per_token)) for per_token in (False, True)
    )
    mean = mean_loss(dpo())
    # The same sum, once in each program.
    np.testing.assert_allclose(mean(adapted, by_row)[0], mean(adapted, by_token)[0], rtol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (4, 11), (4, 12, 1), ()])
def test_fields_of_another_shape(models, shape):
    batch = BATCH | {"ref_logps": np.zeros(shape, np.float32)}
    with pytest.raises(
        ValueError, match=r"must be f32\[4\] or f32\[4, 12\], got ref_logps=float32"
    ):
        reference_logps(models[0], batch, Field(), scorer=token_logps)


def test_missing_field_twin_and_adapters(models):
    base, _ = models
    message = r"reference=Field\('base'\) needs that field in the batch, got .*; make it with"
    with pytest.raises(ValueError, match=message):
        reference_logps(base, BATCH, Field("base"), scorer=token_logps)
    with pytest.raises(TypeError, match=r"Frozen\(\) needs a Twin .*, got TinyDecoder; train Twin"):
        policy_of(base, Frozen())
    with pytest.raises(ValueError, match=r"needs a model with low-rank .*TinyDecoder .*; insert"):
        reference_logps(base, BATCH, AdaptersOff(), scorer=token_logps)
