# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DPO of every decoder family against a float64 forward, and references that are one model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_models import lora
from dovetail_models.families import FAMILIES
from dovetail_models.testing import logits
from dovetail_tune import (
    AdaptersOff,
    Field,
    Frozen,
    Twin,
    dpo,
    mean_loss,
    token_logps,
    with_reference,
)

SMALL = {"vocab_size": 53, "embed": 24, "depth": 2, "heads": 4, "mlp": 20}
HEADS = {**SMALL, "kv_heads": 2, "head_dim": 8}
MIXTURE = {"experts": 5, "top_k": 2}
LATENT = models.LatentAttention(
    heads=4, q_rank=8, kv_rank=12, nope_dim=6, rope_dim=4, v_dim=10, rope=models.Rope(theta=1e4)
)
EXPERTS = models.Experts(count=6, top_k=2, hidden=8, shared=8)
DEEPSEEK = {"vocab_size": 53, "embed": 24, "mlp": 20, "depth": 2, "dense": 1}
DEEPSEEK |= {"attention": LATENT, "experts": EXPERTS}
DECODERS = {
    "llama": models.llama(**HEADS),
    "mistral": models.mistral(**HEADS, window=3),
    "qwen2": models.qwen2(**SMALL, kv_heads=2, tie=True),
    "qwen3": models.qwen3(**HEADS),
    "qwen3_moe": models.qwen3_moe(**HEADS, **MIXTURE),
    "gemma": models.gemma(**HEADS),
    "gemma2": models.gemma2(**HEADS, window=4, query_scalar=6.0, score_cap=2.0, logit_cap=3.0),
    "gemma3_text": models.gemma3(**HEADS, window=4, query_scalar=6.0, pattern=2),
    "gpt2": models.gpt2(**SMALL, max_length=32),
    "mixtral": models.mixtral(**HEADS, **MIXTURE),
    "gpt_oss": models.gpt_oss(**HEADS, window=4, **MIXTURE),
    "deepseek_v2": models.deepseek_v2(**DEEPSEEK),
    "deepseek_v3": models.deepseek_v3(**DEEPSEEK),
}
FAST = ("llama", "gemma2", "mixtral")  # a family compiles for some seconds


@pytest.fixture(scope="module")
def batch():
    """Two pairs with one prompt each, of unequal length."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 53, (4, 10), dtype=np.int32)
    ids[1::2, :4] = ids[::2, :4]
    ends = np.array([9, 6, 5, 8])
    index = np.broadcast_to(np.arange(9, dtype=np.int32), (4, 9))
    real = index < ends[:, None]
    mask = (real & (index >= 3)).astype(np.float32)
    return {
        "tokens": np.where(real, ids[:, :-1], 0),
        "targets": np.where(real, ids[:, 1:], 0),
        "mask": mask,
        "segment_ids": real.astype(np.int32),
        "positions": np.where(real, index, 0),
        "pair_ids": np.array([5, 5, 2, 2], np.int32),
        "ref_logps": -(mask.sum(1) * rng.uniform(3, 5, 4)).astype(np.float32),
    }


def _random(config):
    """A model without the ones and zeros that hide sinks, biases and scales."""
    model = models.init(config, seed=0)
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


def _of_float64(model, batch, *, beta):
    """DPO's loss (2305.18290, equation 7) from the logits of each row's own tokens in float64."""
    sums = []
    for i, n in enumerate(batch["segment_ids"].sum(1)):
        z = logits(model, batch["tokens"][i : i + 1, :n])[0]
        z = z - np.logaddexp.reduce(z, axis=-1, keepdims=True)
        picked = z[np.arange(n), batch["targets"][i, :n]]
        sums.append((picked * batch["mask"][i, :n]).sum())
    ratio = np.array(sums) - batch["ref_logps"].astype(np.float64)
    return np.logaddexp(0, -beta * (ratio[::2] - ratio[1::2])).mean()


def _moved(model, change):
    other = nnx.clone(model)
    state = nnx.state(model, nnx.Param)
    nnx.update(other, jax.tree.map(lambda p, d: p + d.astype(np.float32), state, change))
    return other


def test_no_family_is_forgotten():
    encoders = {"bert", "siglip", "siglip_text_model", "siglip_vision_model", "vit"}
    assert FAMILIES.keys() - DECODERS.keys() == encoders


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family",
    [*FAST, *(pytest.param(f, marks=pytest.mark.slow) for f in DECODERS if f not in FAST)],
)
def test_a_family_has_the_loss_and_the_gradient_of_a_float64_forward(family, batch):
    model = _random(DECODERS[family])
    loss = mean_loss(dpo(beta=0.3))
    (value, _), grads = nnx.jit(nnx.value_and_grad(loss, has_aux=True))(model, batch)
    # float32 through two layers, in sums of six log-probabilities of size 4.
    assert float(value) == pytest.approx(_of_float64(model, batch, beta=0.3), rel=2e-5)
    rng = np.random.default_rng(2)
    for _ in range(2):
        # Small, so that no token of a mixture goes to another expert on the way.
        draw = jax.tree.map(
            lambda p: 1e-5 * rng.standard_normal(p.shape), nnx.state(model, nnx.Param)
        )
        ahead, behind = _moved(model, draw), _moved(model, jax.tree.map(lambda d: -d, draw))
        change = _of_float64(ahead, batch, beta=0.3) - _of_float64(behind, batch, beta=0.3)
        # Parameters are rounded to float32: the step between both is not quite twice the draw.
        steps = jax.tree.map(
            lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64),
            nnx.state(ahead, nnx.Param),
            nnx.state(behind, nnx.Param),
        )
        products = jax.tree.map(lambda g, s: (np.asarray(g, np.float64) * s).sum(), grads, steps)
        wanted = sum(jax.tree.leaves(products))
        size = np.sqrt(sum((np.asarray(x) ** 2).sum() for x in jax.tree.leaves(steps)))
        norm = np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(grads)))
        # Gradients of float32 through two layers, beside the length of both vectors.
        assert change == pytest.approx(wanted, abs=1e-4 * size * norm), family
        assert norm > 1e-2


@pytest.fixture(scope="module")
def adapted():
    """A model with adapters that change its answers."""
    model = lora.insert(
        _random(DECODERS["llama"]), "**.{q,v,up,down}", rank=3, alpha=6, rngs=nnx.Rngs(0)
    )
    rng = np.random.default_rng(3)
    state = nnx.state(model, nnx.LoRAParam)
    moved = jax.tree.map(lambda p: p + 0.2 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


@pytest.mark.thorough
def test_adapters_off_is_the_removed_model_a_twin_and_a_field(adapted, batch):
    base = lora.remove(adapted)
    given = {name: x for name, x in batch.items() if name != "ref_logps"}
    with_field = next(with_reference([given], base))
    rows = token_logps(base, given).logprob.sum(1)
    assert np.abs(rows - token_logps(adapted, given).logprob.sum(1)).max() > 0.1
    losses = {
        "removed": mean_loss(dpo())(adapted, given | {"ref_logps": rows}),
        "field": mean_loss(dpo(reference=Field()))(adapted, with_field),
        "twin": mean_loss(dpo(reference=Frozen()))(Twin(adapted, base), given),
        "off": mean_loss(dpo(reference=AdaptersOff()))(adapted, given),
    }
    value, terms = losses.pop("removed")
    assert abs(float(value) - np.log(2)) > 1e-3
    # x W + scale (x 0) 0 is x W, and each operation is a program of its own outside of jit.
    for who in ("twin", "off"):
        assert float(losses[who][0]) == float(value), who
        assert jax.tree.map(float, losses[who][1]) == jax.tree.map(float, terms), who
    # with_reference is one program, in which XLA fuses what lies between the products.
    np.testing.assert_allclose(with_field["ref_logps"], rows, rtol=2e-6)
    np.testing.assert_allclose(losses["field"][0], value, rtol=1e-5)


@pytest.mark.thorough
def test_gradients_reach_the_adapters_alone_and_do_not_depend_on_the_reference(adapted, batch):
    base = lora.remove(adapted)
    given = batch | {"ref_logps": np.asarray(token_logps(base, batch).logprob.sum(1))}
    off = nnx.grad(mean_loss(dpo(reference=AdaptersOff())), has_aux=True)(adapted, given)[0]
    field = nnx.grad(mean_loss(dpo(reference=Field())), has_aux=True)(adapted, given)[0]
    twin = nnx.grad(mean_loss(dpo(reference=Frozen())), has_aux=True)(Twin(adapted, base), given)[0]
    assert all((jnp.asarray(g) == 0).all() for g in jax.tree.leaves(twin["frozen"]))
    for path, wanted in nnx.to_flat_state(field):
        np.testing.assert_array_equal(dict(nnx.to_flat_state(off))[path][...], wanted[...])
        np.testing.assert_array_equal(
            dict(nnx.to_flat_state(twin["trained"]))[path][...], wanted[...]
        )
