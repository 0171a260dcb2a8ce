# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType

from dovetail_models import (
    Attention,
    ClampedGlu,
    Config,
    Experts,
    Groups,
    LatentAttention,
    Layer,
    Mlp,
    Norm,
    Rope,
    abstract,
    active,
    bert,
    dense_kv,
    flops,
    kv_bytes,
    llama,
    qwen3,
    size,
)
from dovetail_models.flops import _check_decoder

ROPE = Rope(theta=1e4)
LLAMA_2_7B = llama(vocab_size=32_000, embed=4096, depth=32, heads=32, mlp=11_008)
LLAMA_3_405B = llama(vocab_size=128_256, embed=16_384, depth=126, heads=128, kv_heads=8, mlp=53_248)
MIXTRAL_8X7B = dataclasses.replace(
    llama(vocab_size=32_000, embed=4096, depth=1, heads=32, kv_heads=8, mlp=1),
    layers=(
        Layer(
            attention=Attention(heads=32, kv_heads=8, head_dim=128, rope=ROPE),
            mlp=Experts(count=8, top_k=2, hidden=14_336),
        ),
    )
    * 32,
)
LATENT = LatentAttention(
    heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, rope=ROPE
)
DEEPSEEK_V3 = Config(
    family="deepseek_v3",
    vocab_size=129_280,
    embed=7168,
    layers=(Layer(attention=LATENT, mlp=Mlp(hidden=18_432)),) * 3
    + (
        Layer(
            attention=LATENT,
            mlp=Experts(
                count=256,
                top_k=8,
                hidden=2048,
                score="sigmoid",
                shared=2048,
                selection_bias=True,
                groups=Groups(count=8, top_k=4, score="top2"),
            ),
        ),
    )
    * 58,
    norm=Norm(),
    tie=False,
    max_length=4096,
)


def test_the_published_size_of_llama_2():
    assert size(LLAMA_2_7B) == active(LLAMA_2_7B) == 6_738_415_616


# In billions: 2401.04088, abstract, and 2412.19437, abstract.
@pytest.mark.parametrize("config, total, used", [(MIXTRAL_8X7B, 47, 13), (DEEPSEEK_V3, 671, 37)])
def test_the_published_sizes_of_mixtures_of_experts(config, total, used):
    assert round(size(config) / 1e9) == total
    # The papers do not count the table that tokens are looked up in.
    assert round((active(config) - config.vocab_size * config.embed) / 1e9) == used


def test_the_cost_of_a_step_of_llama_2():
    # 6 operations per token and matrix element, and half of the 8192² scores.
    assert flops(LLAMA_2_7B, tokens=4 * 8192, length=8192) / 1e12 == pytest.approx(
        1510.11, abs=0.005
    )


def test_the_published_cache_of_llama_3():
    # 2505.09343, table 1: 516.096 KB per token in bfloat16.
    assert kv_bytes(LLAMA_3_405B, dtype=jnp.bfloat16) == 516_096


def test_the_latent_cache_of_deepseek_v3():
    # The same table: 70.272 KB per token, keys that hold their values.
    assert kv_bytes(DEEPSEEK_V3, dtype=jnp.bfloat16) == 70_272


GROUPED = Attention(heads=6, kv_heads=2, head_dim=10, rope=ROPE)
SMALL_LATENT = LatentAttention(
    heads=3, q_rank=None, kv_rank=10, nope_dim=6, rope_dim=4, v_dim=8, rope=ROPE
)
EXPERTS = Experts(count=5, top_k=2, hidden=14)


def config(attention=GROUPED, mlp=None, *, norms="pre", depth=1, **changes):
    layer = Layer(attention=attention, mlp=mlp or Mlp(hidden=20), norms=norms)
    base = {"family": "x", "vocab_size": 37, "embed": 12, "norm": Norm(), "max_length": 19}
    return Config(**{**base, "layers": (layer,) * depth, "tie": False, **changes})


def changed(part, **values):
    return dataclasses.replace(part, **values)


CONFIGS = {
    "plain": config(depth=2),
    "tied": config(tie=True),
    "attention biases": config(changed(GROUPED, qkv_bias=True, out_bias=True)),
    "qkv biases": config(changed(GROUPED, qkv_bias=True)),
    "qk norm": config(changed(GROUPED, qk_norm=True)),
    "sinks, no rope": config(changed(GROUPED, sinks=True, rope=None)),
    "mlp biases": config(mlp=Mlp(hidden=20, bias=True)),
    "no gate": config(mlp=Mlp(hidden=20, gated=False, bias=True, activation="gelu")),
    "sandwich": config(norms="sandwich"),
    "post": config(norms="post"),
    "layer norm": config(changed(GROUPED, qk_norm=True), norm=Norm(kind="layer"), norms="sandwich"),
    "learned positions": config(learned_positions=True, tie=True),
    "latent": config(SMALL_LATENT),
    "latent, low-rank queries": config(changed(SMALL_LATENT, q_rank=9)),
    "latent, biases": config(changed(SMALL_LATENT, q_rank=9, bias=True)),
    "latent biases, whole queries": config(changed(SMALL_LATENT, bias=True)),
    "experts": config(mlp=EXPERTS, depth=2),
    "shared expert": config(SMALL_LATENT, changed(EXPERTS, shared=9, selection_bias=True)),
    "expert biases": config(
        mlp=changed(EXPERTS, bias=True, router_bias=True, activation=ClampedGlu())
    ),
    "qwen3": qwen3(vocab_size=41, embed=10, depth=2, heads=4, kv_heads=2, head_dim=6, mlp=18),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_are_those_of_the_module(name):
    config = CONFIGS[name]
    model = abstract(config)
    graph, state = nnx.split(model)
    assert size(config) == sum(leaf.size for leaf in jax.tree.leaves(state))
    tokens = jax.ShapeDtypeStruct((3, 16), jnp.int32)
    jaxpr = jax.make_jaxpr(lambda s, t: nnx.merge(graph, s)(t))(state, tokens)
    matrices, scores, mixing = dots(jaxpr.jaxpr)
    # The module computes all scores and masks half of them.
    want = matrices + scores / 2
    assert flops(config, tokens=48, length=16, training=False) == want
    assert flops(config, tokens=48, length=16) == 3 * want
    # The weighted sums over experts are the one product that is not counted.
    routed = [la.mlp.top_k for la in config.layers if isinstance(la.mlp, Experts)]
    assert mixing == 2 * 48 * config.embed * sum(routed)


def dots(jaxpr):
    """Operations of the products in a program: of matrices, of attention, of mixing experts."""
    found = np.zeros(3)
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            found += dots(inner)
        if eqn.primitive.name == "ragged_dot_general":
            # Each row of [m, k] meets one [k, n] of the stack.
            (rows, inner), (_, _, columns) = (v.aval.shape for v in eqn.invars[:2])
            found[0] += 2 * rows * inner * columns
        if eqn.primitive.name == "dot_general":
            (contract, _), (batch, _) = eqn.params["dimension_numbers"]
            length = np.prod([eqn.invars[0].aval.shape[d] for d in contract])
            found[min(len(batch), 1) * (3 - len(batch))] += 2 * length * eqn.outvars[0].aval.size
    return found


@pytest.mark.parametrize("name", ["experts", "expert biases", "plain"])
def test_what_a_token_meets(name):
    config = CONFIGS[name]
    leaves = nnx.to_flat_state(nnx.state(abstract(config)))
    met = 0.0
    for path, leaf in leaves:
        stacked = path[-2] in ("gate", "up", "down") and leaf.shape[0] == 5
        met += leaf.get_value().size * (2 / 5 if stacked else 1)
    assert active(config) == round(met)


@pytest.mark.thorough
def test_the_dense_count_is_that_of_xla():
    # Wide, and short: what is not a product is a few operations per activation.
    config = llama(vocab_size=384, embed=256, depth=2, heads=2, kv_heads=1, mlp=512)
    graph, state = nnx.split(abstract(config))
    tokens = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    forward = jax.jit(lambda s, t: nnx.merge(graph, s)(t)).lower(state, tokens)
    cost = forward.compile().cost_analysis()
    ours = flops(config, tokens=16, length=16, training=False)
    masked = sum(la.attention.heads * la.attention.head_dim * 16 * 16 * 2 for la in config.layers)
    # XLA counts the masked half too, and at this width 1 % for norms, softmax and activations.
    assert ours + masked <= cost["flops"] <= 1.01 * (ours + masked)


def test_a_window_costs_what_it_sees():
    config = llama(vocab_size=8, embed=4, depth=1, heads=1, mlp=3, head_dim=2)
    layer = config.layers[0]
    near = dataclasses.replace(layer.attention, window=3)
    windowed = dataclasses.replace(config, layers=(dataclasses.replace(layer, attention=near),))
    spared = flops(config, tokens=10, length=10, training=False) - flops(
        windowed, tokens=10, length=10, training=False
    )
    # 10²/2 pairs of query and key against 3²/2 + 7 * 3, each 2 products of head_dim 2.
    assert spared == 2 * 2 * 2 * (50 - 25.5)
    assert flops(config, tokens=4, length=2) == 2 * flops(config, tokens=2, length=2)


@pytest.mark.parametrize("name", ["plain", "latent", "experts"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_cache_holds_what_it_is_said_to(name, dtype):
    config = CONFIGS[name]
    entries = jax.tree.leaves(dense_kv(config, rows=2, length=7, dtype=dtype))
    assert 2 * 7 * kv_bytes(config, dtype=dtype) == sum(leaf.nbytes for leaf in entries)


@pytest.mark.parametrize(
    "name, ways, split",
    # Two key-value heads on two devices and on four, and the one latent of all heads.
    [("plain", 2, 2), ("plain", 4, 1), ("latent", 2, 1)],
)
def test_a_device_holds_its_heads(name, ways, split):
    config = CONFIGS[name]
    mesh = AbstractMesh((3, ways), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    whole = kv_bytes(config, dtype=jnp.bfloat16)
    assert kv_bytes(config, dtype=jnp.bfloat16, mesh=mesh) == whole // split


def test_a_part_of_a_sequence_is_refused():
    with pytest.raises(ValueError, match="must be whole sequences") as error:
        flops(LLAMA_2_7B, tokens=100, length=64)
    assert "tokens=100, length=64" in str(error.value)
    assert "Use tokens=rows * length" in str(error.value)


def test_an_encoder_is_refused():
    config = bert(vocab_size=8, embed=4, depth=1, heads=2, mlp=6)
    # Called itself, since here the annotations of the public functions are checked before it.
    with pytest.raises(TypeError, match="a decoder's Config") as error:
        _check_decoder(config)
    assert "got a TextConfig" in str(error.value)
    assert "Use describe(abstract(config))" in str(error.value)
