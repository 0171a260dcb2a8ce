# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every decoder family, on a tiny configuration with all of its quirks at work."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

import forced_devices
import warm_start
from dovetail_models import (
    ClampedGlu,
    DynamicScaling,
    Experts,
    Groups,
    LatentAttention,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
    deepseek_v2,
    deepseek_v3,
    dense_kv,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_oss,
    llama,
    load,
    mistral,
    mixtral,
    qwen2,
    qwen3,
    qwen3_moe,
    save,
    size,
)
from dovetail_models.families import FAMILIES
from dovetail_models.hf.config import describe, parse
from dovetail_models.placing.shard import WEIGHTS

SIZES = {"vocab_size": 29, "embed": 12, "depth": 3, "heads": 6, "kv_heads": 2, "mlp": 10}
YARN = YarnScaling(factor=4.0, original_length=16, beta_fast=2.0, beta_slow=0.1)
LATENT = LatentAttention(
    heads=3,
    q_rank=7,
    kv_rank=5,
    nope_dim=3,
    rope_dim=4,
    v_dim=6,
    rope=Rope(
        theta=3e4,
        interleaved=True,
        scaling=dataclasses.replace(YARN, mscale=0.7, mscale_all_dim=0.9),
    ),
)
DEEPSEEK = {"vocab_size": 29, "embed": 12, "depth": 3, "mlp": 10, "dense": 1}
CONFIGS = {
    "llama": llama(
        **SIZES,
        rope_scaling=Llama3Scaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=16
        ),
        attention_bias=True,
        mlp_bias=True,
    ),
    "mistral": mistral(**SIZES, window=5),
    "qwen2": qwen2(**SIZES, rope_scaling=YARN, tie=True),
    "qwen3": qwen3(**SIZES, head_dim=8),
    "qwen3_moe": qwen3_moe(
        **SIZES, head_dim=4, experts=5, top_k=2, dense=(1,), dense_mlp=7, normalise=False
    ),
    "gemma": gemma(**SIZES, head_dim=4),
    "gemma2": gemma2(**SIZES, head_dim=4, window=4, query_scalar=6.0, score_cap=2.0, logit_cap=3.0),
    "gemma3": gemma3(
        **SIZES,
        head_dim=4,
        window=4,
        query_scalar=6.0,
        pattern=2,
        rope_scaling=LinearScaling(factor=8.0),
    ),
    "mixtral": mixtral(**SIZES, experts=5, top_k=2, window=6),
    "gpt_oss": gpt_oss(
        **SIZES,
        head_dim=8,
        experts=5,
        top_k=2,
        window=4,
        gate=ClampedGlu(limit=1.0),
        rope_scaling=dataclasses.replace(YARN, truncate=False),
    ),
    "gpt2": gpt2(vocab_size=29, embed=12, depth=3, heads=3, mlp=10, max_length=40),
    "deepseek_v2": deepseek_v2(
        **DEEPSEEK,
        attention=dataclasses.replace(LATENT, q_rank=None),
        experts=Experts(
            count=6,
            top_k=3,
            hidden=4,
            shared=8,
            normalise=False,
            scale=1.7,
            groups=Groups(count=3, top_k=2, score="max"),
        ),
    ),
    "deepseek_v3": deepseek_v3(
        **DEEPSEEK,
        attention=LATENT,
        experts=Experts(
            count=8,
            top_k=3,
            hidden=4,
            shared=4,
            score="sigmoid",
            scale=2.5,
            selection_bias=True,
            groups=Groups(count=4, top_k=2, score="top2"),
        ),
    ),
}
EVEN = {"vocab_size": 32, "embed": 16, "depth": 3, "heads": 4, "kv_heads": 2, "mlp": 8}
# Sequences of 19 tokens are beyond the original length.
BY_LENGTH = {
    "dynamic": DynamicScaling(factor=2.5, original_length=16),
    "longrope": LongRopeScaling(
        short_factor=(1.0, 1.5), long_factor=(2.5, 9.0), original_length=16, factor=4.0
    ),
}
every = pytest.mark.parametrize("name", CONFIGS)
LENGTH, SPLIT = 19, 13  # beyond the windows and the original context of 16


@pytest.fixture(scope="module")
def made(random_model):
    """A function that gives the random model of a family, made once."""
    models = {name: random_model(config) for name, config in CONFIGS.items()}
    return models.__getitem__


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(5).integers(0, 29, (2, LENGTH), np.int32)


@nnx.jit
def three_ways(model, tokens):
    """Logits of whole rows, scanned, and read from a cache that was filled in two parts."""
    kv = dense_kv(model.config, rows=2, length=LENGTH)
    where = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    first, last = slice(None, SPLIT), slice(SPLIT, None)
    x, kv = model.features(tokens[:, first], positions=where[:, first], kv=kv)
    y, _ = model.features(tokens[:, last], positions=where[:, last], kv=kv)
    cached = model.head(jnp.concatenate([x, y], axis=1))
    return model(tokens), model.configure(scan=True)(tokens), cached


@pytest.mark.thorough
@pytest.mark.capability("decoder families, whole, scanned and cached")
@every
def test_logits_are_those_of_the_papers_whole_scanned_and_cached(name, made, tokens, oracle):
    model = made(name)
    want = oracle(model, tokens)
    whole, scanned, cached = three_ways(model, tokens)
    # float32 against float64: hundreds of roundings of 6e-8, relative to the largest logit.
    bound = 2e-5 * np.abs(want).max()
    np.testing.assert_allclose(whole, want, rtol=0, atol=bound)
    np.testing.assert_allclose(cached, want, rtol=0, atol=bound)
    np.testing.assert_allclose(scanned, want, rtol=0, atol=bound)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_rope_follows_the_length_of_each_sequence(name, random_model, oracle):
    config = llama(**SIZES, head_dim=4, rope_scaling=BY_LENGTH[name], max_length=16)
    assert parse(describe(config)) == config
    assert config.kv_length == 16
    model, row = random_model(config), np.random.default_rng(6).integers(0, 29, (1, 32), np.int32)
    segment_ids = np.array([[1] * 19 + [2] * 13], np.int32)
    got = np.asarray(nnx.jit(lambda m, t, s: m(t, segment_ids=s))(model, row, segment_ids))
    # float32 against float64, as above: the second segment is short, and packed beside a long one.
    for alone in (slice(0, 19), slice(19, 32)):
        want = oracle(model, row[:, alone])
        np.testing.assert_allclose(got[:, alone], want, rtol=0, atol=2e-5 * np.abs(want).max())
    kv, where = dense_kv(config, rows=1, length=32), np.arange(19)[None]
    with pytest.raises(ValueError, match="Over a cache every position") as error:
        model.features(row[:, :19], positions=where, kv=kv)
    assert "got a position of 18 with original_length=16. Pass a shorter" in str(error.value)


@every
def test_config_json_says_the_whole_config(name):
    config = CONFIGS[name]
    assert parse(describe(config)) == config


@pytest.mark.capability("Hugging Face directories of decoders, in and out")
@every
def test_a_directory_brings_every_parameter_back(name, made, tmp_path, leaves):
    save(made(name), tmp_path / "model")
    again = load(tmp_path / "model")
    want, got = leaves(made(name)), leaves(again)
    assert got.keys() == want.keys()
    for leaf in want:
        np.testing.assert_array_equal(got[leaf], want[leaf], err_msg=leaf)
    assert again.config == CONFIGS[name]


@every
def test_size_counts_the_leaves(name, made):
    state = nnx.to_flat_state(nnx.state(made(name), WEIGHTS))
    assert size(CONFIGS[name]) == sum(param[...].size for _, param in state)


@every
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [0, -3, "12", 2.5, None])
def test_a_wrong_size_is_refused(name, key, value):
    keys = describe(CONFIGS[name])
    key = (
        {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}.get(key, key)
        if name == "gpt2"
        else key
    )
    with pytest.raises(ValueError, match=f"config.json (key|must hold) '{key}'") as error:
        parse(keys | {key: value})
    assert ("Correct config.json" in str(error.value)) or (f"Add '{key}'" in str(error.value))


@pytest.mark.capability("gradients of decoders", on="cuda")
@pytest.mark.parametrize("name", ["gemma3", "gpt_oss", "deepseek_v3"])
def test_training_lowers_for_a_gpu(name, made, tokens):
    graph, state = nnx.split(made(name))
    grad = jax.jit(jax.grad(lambda state, tokens: nnx.merge(graph, state)(tokens).sum()))
    exported = export.export(grad, platforms=["cuda"])(state, tokens)
    assert len(exported.out_avals) == len(jax.tree.leaves(state))


EIGHT_DEVICES = """
import json, sys
import jax, numpy as np
from flax import nnx
from jax.sharding import AxisType
import forced_devices
from dovetail_models import load

tokens = np.random.default_rng(0).integers(0, 32, (8, 12)).astype(np.int32)
graded = jax.jit(lambda m, t: nnx.grad(lambda m: (m(t) ** 2).mean(), has_aux=False)(m))
forward = jax.jit(lambda m, t: m(t))
path, axes = sys.argv[1], json.loads(sys.argv[2])
alone = load(path)
want = forward(alone, tokens), graded(alone, tokens)
forced_devices.stop_caching()
mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
model = load(path, mesh=mesh)
with jax.set_mesh(mesh):
    got = forward(model, tokens), graded(model, tokens)
for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    # float32 sums in another order, through three layers.
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * max(1e-3, float(np.abs(y).max())))
print("equal")
"""
SHARDED = {
    "qwen3_moe": qwen3_moe(**EVEN, head_dim=4, experts=4, top_k=2, dense=(1,), dense_mlp=8),
    "gpt_oss": gpt_oss(**EVEN, head_dim=4, experts=4, top_k=2, window=4),
    "deepseek_v3": dataclasses.replace(
        CONFIGS["deepseek_v3"],
        vocab_size=32,
        layers=tuple(
            dataclasses.replace(la, attention=dataclasses.replace(la.attention, heads=4))
            for la in CONFIGS["deepseek_v3"].layers
        ),
    ),
}


@pytest.mark.thorough("programs on eight devices, for each family")
@pytest.mark.capability("decoders on expert, data and tensor axes")
@pytest.mark.parametrize(
    "name, axes",
    [
        ("qwen3_moe", {"data": 2, "expert": 2, "tensor": 2}),
        pytest.param("gpt_oss", {"fsdp": 4, "tensor": 2}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", {"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", {"expert": 8}, marks=pytest.mark.slow),
    ],
)
def test_eight_devices_compute_what_one_does(name, axes, random_model, tmp_path):
    save(random_model(SHARDED[name]), tmp_path / "model")
    environment = forced_devices.environment(8, cached=True)
    command = ["-W", "error", "-c", EIGHT_DEVICES]
    command += [str(tmp_path / "model"), json.dumps(axes)]
    done = warm_start.run(command, env=environment)
    assert done.stdout == "equal\n", done.stderr


def test_every_family_with_a_decoder_is_here():
    encoders = {"bert", "siglip", "siglip_text_model", "siglip_vision_model", "vit"}
    assert {config.family for config in CONFIGS.values()} == FAMILIES.keys() - encoders
