# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import (
    Experts,
    LatentAttention,
    Rope,
    abstract,
    deepseek_v3,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    load,
    qwen3,
    save,
)
from dovetail_models.surgery.grow import grow

CONFIG = llama(vocab_size=31, embed=12, depth=2, heads=4, kv_heads=2, head_dim=6, mlp=20)
SMALL = {"vocab_size": 31, "embed": 12, "heads": 4}
FAMILIES = {
    "llama": CONFIG,
    # Norms of heads; norms after each sub-block; biases and LayerNorm.
    "qwen3": qwen3(**SMALL, depth=2, kv_heads=2, head_dim=6, mlp=20),
    "gemma2": gemma2(**SMALL, depth=2, kv_heads=2, head_dim=6, mlp=20),
    "gpt2": gpt2(**SMALL, depth=2, mlp=20),
    # Experts with biases, sinks; latent attention, a shared expert, one layer without experts.
    "gpt_oss": gpt_oss(
        **SMALL, depth=2, kv_heads=2, head_dim=6, mlp=20, experts=3, top_k=2, window=4
    ),
    "deepseek_v3": deepseek_v3(
        vocab_size=31,
        embed=12,
        depth=2,
        dense=1,
        mlp=20,
        attention=LatentAttention(
            heads=4, q_rank=5, kv_rank=6, nope_dim=4, rope_dim=2, v_dim=3, rope=Rope(theta=1e4)
        ),
        experts=Experts(count=4, top_k=2, hidden=14, score="sigmoid", shared=10),
    ),
}
TOKENS = jnp.asarray(np.random.default_rng(4).integers(0, 31, (2, 9), np.int32))


def close(got, want):
    # The same float32 sums, some in another order.
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * float(jnp.abs(want).max()))


# By default what differs most: grouped heads, norms after each part, experts.
FAST = ("llama", "gemma2", "deepseek_v3")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in FAMILIES]
)
def test_a_grown_model_computes_the_same(random_model, jitted, name):
    model = random_model(FAMILIES[name])
    larger = grow(model, depth=5, mlp=33, heads=6, key=jax.random.key(1))
    layers = larger.config.layers
    assert len(larger.layers) == len(layers) == 5
    assert {(layer.mlp.hidden, layer.attention.heads) for layer in layers} == {(33, 6)}
    assert nnx.graphdef(larger) == nnx.graphdef(abstract(larger.config))
    close(jitted(larger, TOKENS), jitted(model, TOKENS))


@pytest.mark.thorough
def test_the_parts_are_the_old_and_the_new(random_model, leaves):
    model = random_model(dataclasses.replace(CONFIG, init_std=0.5))
    old, new = leaves(model), leaves(grow(model, mlp=200, heads=40, key=jax.random.key(1)))
    for name, leaf in new.items():
        np.testing.assert_array_equal(leaf[tuple(map(slice, old[name].shape))], old[name])
    up, down = new["layers.0.mlp.up.kernel"], new["layers.0.mlp.down.kernel"]
    assert not down[20:].any()
    assert not new["layers.1.attn.o.kernel"][24:].any()
    # 2160 draws: the deviation is known to 1.5 percent.
    np.testing.assert_allclose(up[:, 20:].std(), 0.5, rtol=0.06)
    assert not np.array_equal(up[:, 20:], new["layers.1.mlp.up.kernel"][:, 20:])
    assert not np.array_equal(up[:, 20:], new["layers.0.mlp.gate.kernel"][:, 20:])


@pytest.mark.thorough
def test_the_old_model_stays_as_it_was(random_model, leaves):
    model = random_model(CONFIG)
    graph, before = nnx.graphdef(model), leaves(model)
    grow(model, depth=3, mlp=22, heads=6, key=jax.random.key(1))
    assert nnx.graphdef(model) == graph
    assert all(np.array_equal(leaf, before[name]) for name, leaf in leaves(model).items())


@pytest.mark.thorough
def test_new_layers_come_evenly_and_are_their_own(random_model, leaves):
    model = random_model(CONFIG)
    larger = grow(model, depth=4)
    old, new = leaves(model), leaves(larger)
    for i, source in enumerate((0, 0, 1, 1)):
        for name in ("mlp.up.kernel", "attn_norm.scale"):
            np.testing.assert_array_equal(new[f"layers.{i}.{name}"], old[f"layers.{source}.{name}"])
    silent = [not new[f"layers.{i}.mlp.down.kernel"].any() for i in range(4)]
    assert silent == [False, True, False, True]
    larger.layers[1].mlp.up.kernel[...] = 0 * larger.layers[1].mlp.up.kernel[...]
    assert jnp.abs(larger.layers[0].mlp.up.kernel[...]).min() > 0


@pytest.mark.thorough
def test_gradients_reach_what_is_new(random_model):
    model = random_model(CONFIG)
    larger = grow(model, depth=4, mlp=28, heads=6, key=jax.random.key(1))
    graded = nnx.jit(nnx.grad(lambda model: jnp.square(model(TOKENS)).mean()))

    def smallest(grads):
        layer = grads["layers"]
        return [
            float(jnp.abs(leaf).min())
            for leaf in (
                layer[1]["mlp"]["down"]["kernel"][...],
                layer[1]["attn"]["o"]["kernel"][...],
                layer[0]["mlp"]["down"]["kernel"][20:],
                layer[0]["attn"]["o"]["kernel"][24:],
                # After the first step what reads is trained too.
                layer[1]["mlp"]["up"]["kernel"][...],
                layer[0]["mlp"]["up"]["kernel"][:, 20:],
                layer[0]["attn"]["v"]["kernel"][:, 12:],
            )
        ]

    grads = graded(larger)
    assert min(smallest(grads)[:4]) > 0
    assert max(smallest(grads)[4:]) == 0
    params = nnx.state(larger, nnx.Param)
    nnx.update(larger, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads))
    assert min(smallest(graded(larger))) > 0


@pytest.mark.thorough
def test_the_larger_model_is_saved(random_model, tmp_path, jitted):
    larger = grow(random_model(CONFIG), depth=3, mlp=22, key=jax.random.key(1))
    save(larger, tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.config == larger.config
    np.testing.assert_array_equal(jitted(again, TOKENS), jitted(larger, TOKENS))


def test_products_that_were_replaced_stay(random_model):
    model = random_model(CONFIG)

    def dot(*args, **options):
        return jax.lax.dot_general(*args, **options)

    model.layers[1].mlp.up.dot_general = dot
    larger = grow(model, mlp=22, key=jax.random.key(1))
    assert larger.layers[1].mlp.up.dot_general is dot
    assert larger.layers[0].mlp.up.dot_general is not dot


def test_an_outline_grows():
    outline = grow(abstract(CONFIG), depth=3, mlp=22, heads=6, key=jax.random.key(1))
    leaf = outline.layers[2].mlp.up.kernel.get_value()
    assert isinstance(leaf, jax.ShapeDtypeStruct)
    assert leaf.shape == (12, 22)


@pytest.mark.parametrize(
    "options, parts",
    [
        ({}, ["at least one of depth, mlp and heads", "got {} for a model of", "depth=3"]),
        ({"depth": 2}, ["larger", "{'depth': 2} for a model of {'depth': 2", "Pass depth=3"]),
        ({"mlp": 22}, ["drawn with a key", "{'mlp': 22} with key=None", "key=jax.random.key(0)"]),
        (
            {"depth": 3, "key": jax.random.key(0)},
            ["new layers without one", "with key=a key", "Leave key out"],
        ),
        (
            {"heads": 5, "key": jax.random.key(0)},
            ["a multiple of the 2 query heads", "heads=5", "Use heads=6"],
        ),
    ],
)
def test_what_is_not_larger_is_refused(options, parts):
    with pytest.raises(ValueError, match="got") as error:
        grow(abstract(CONFIG), **options)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.thorough
def test_adapters_are_refused(random_model, adapt):
    with pytest.raises(ValueError, match="adapters folded in") as error:
        grow(adapt(random_model(CONFIG), "layers.1.attn.q"), depth=3)
    assert "got adapters at layers.1.attn.q" in str(error.value)
    assert "lora.merge(model)" in str(error.value)


@pytest.mark.thorough
def test_a_block_that_is_no_family_s_is_refused(random_model):
    model = random_model(CONFIG)
    model.layers[1].attn = nnx.Linear(12, 12, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="as its family makes it") as error:
        grow(model, mlp=22, key=jax.random.key(0))
    assert "attn.bias" in str(error.value)
    assert "Grow the model first" in str(error.value)
