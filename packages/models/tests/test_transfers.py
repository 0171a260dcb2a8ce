# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The functions that a program calls outside of jit, under a guard against implicit transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from dovetail_models import (
    Experts,
    LatentAttention,
    Rope,
    cast,
    deepseek_v3,
    dense_kv,
    grow,
    init,
    llama,
    load,
    lora,
    merge,
    record_load,
    relayer,
    resize_vocab,
    save,
    track_load,
    update_selection_bias,
)

_MERGES = {
    "linear": {},
    "slerp": {},
    "task_arithmetic": {"base": None},
    "ties": {"base": None, "density": 0.4},
    "dare_linear": {"base": None, "density": 0.4, "seed": 5},
}


def _config(width):
    return llama(vocab_size=width, embed=width, depth=1, heads=2, mlp=width)


def _adapted(model, rngs):
    return lora.insert(model, "layers.*.attn.{q,v}", rank=4, alpha=8, rngs=rngs)


_CALLS = {
    "lora.insert": _adapted,
    "lora.merge": lambda model, rngs: lora.merge(_adapted(model, rngs)),
    "relayer": lambda model, rngs: relayer(model, [0, 0]),
    "resize_vocab": lambda model, rngs: resize_vocab(model, 300),
    "resize_vocab, drawn": lambda model, rngs: resize_vocab(
        model, 300, init="normal", key=rngs.params.key[...]
    ),
    "grow, deeper": lambda model, rngs: grow(model, depth=2),
    "grow, wider": lambda model, rngs: grow(model, mlp=300, key=rngs.params.key[...]),
    "cast": lambda model, rngs: cast(model, jnp.bfloat16),
    "dense_kv": lambda model, rngs: dense_kv(model.config, rows=2, length=8),
}


@pytest.fixture(scope="module", params=[200, 256])
def model(request, random_model):
    return random_model(_config(request.param))


def _same(first, second):
    jax.tree.map(np.testing.assert_array_equal, nnx.state(first), nnx.state(second))


@pytest.mark.thorough
@pytest.mark.parametrize("name", _CALLS)
def test_surgery_passes_a_guard_against_transfers(model, name):
    rngs, again = nnx.Rngs(0), nnx.Rngs(0)
    with jax.transfer_guard("disallow"):
        made = _CALLS[name](model, rngs)
    expected = _CALLS[name](model, again)
    if name == "dense_kv":
        jax.tree.map(np.testing.assert_array_equal, made, expected)
    else:
        _same(made, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("method", _MERGES)
def test_a_merge_passes_a_guard_against_transfers(model, random_model, method):
    models = [random_model(model.config, seed=seed) for seed in (2, 3)]
    options = {name: value or model for name, value in _MERGES[method].items()}
    with jax.transfer_guard("disallow"):
        merged = merge(models, method=method, weights=[0.5, 0.25], **options)
    _same(merged, merge(models, method=method, weights=[0.5, 0.25], **options))


@pytest.mark.capability("an adapter is made under a guard against transfers")
def test_an_adapter_is_made_under_a_guard_against_transfers(random_model):
    model, rngs = random_model(_config(32)), nnx.Rngs(0)
    with jax.transfer_guard("disallow"):
        adapted = _adapted(model, rngs)
    assert adapted.layers[0].attn.q.lora_a.shape == (32, 4)
    assert not np.any(adapted.layers[0].attn.q.lora_b[...])


@pytest.mark.thorough
def test_files_pass_a_guard_against_transfers_on_a_mesh_too(model, tmp_path):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    rngs = nnx.Rngs(0)
    with jax.transfer_guard("disallow"):
        made = init(model.config, seed=0, mesh=mesh)
        save(made, tmp_path / "model")
        loaded = load(tmp_path / "model", mesh=mesh)
        adapted = _adapted(loaded, rngs)
        lora.save_peft(adapted, tmp_path / "peft", base=None)
        read = lora.load_peft(loaded, tmp_path / "peft")
        several = lora.stack(loaded, [tmp_path / "peft", adapted])
    _same(loaded, made)
    _same(read, adapted)
    assert nnx.state(several, nnx.LoRAParam)


@pytest.mark.thorough
def test_balancing_passes_a_guard_against_transfers():
    ranks = {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}
    attention = LatentAttention(heads=2, rope=Rope(theta=1e4), **ranks)
    experts = Experts(count=4, top_k=2, hidden=8, score="sigmoid", selection_bias=True)
    sizes = {"vocab_size": 64, "embed": 16, "depth": 1, "mlp": 32, "dense": 0}
    model = init(deepseek_v3(attention=attention, experts=experts, **sizes), seed=0)
    *_, taps = model.features(jnp.array([[7, 2, 3]]), taps=("router",))
    before = np.asarray(model.layers[0].mlp.router.selection_bias[...])
    with jax.transfer_guard("disallow"):
        tracked = track_load(model)
        record_load(tracked, taps["router"])
        update_selection_bias(tracked, rate=0.5)
    moved = np.abs(np.asarray(tracked.layers[0].mlp.router.selection_bias[...]) - before)
    assert moved.max() == 0.5
