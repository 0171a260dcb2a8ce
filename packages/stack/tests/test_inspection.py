# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_models import bert, init, llama, save
from dovetail_stack.recipes.inspection import inspect, parse_mesh, read, settings

CONFIG = llama(
    vocab_size=40, embed=12, depth=3, heads=4, kv_heads=2, head_dim=6, mlp=20, max_length=64
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama"
    save(init(CONFIG, seed=0), path)
    return path


@pytest.mark.thorough
def test_a_decoder_is_told_from_its_headers(directory):
    found = inspect(directory)
    matrices = 3 * (12 * 6 * (4 + 2 + 2 + 4) + 3 * 12 * 20) + 2 * 40 * 12
    assert found.description.total.parameters == matrices + 3 * 2 * 12 + 12
    # The model is made for 64 tokens; of 64² scores the half counts, two products of 6 a head.
    assert found.cost.length == 64
    head = 40 * 12
    assert found.cost.flops_per_token == 2 * (matrices - head) + 3 * 2 * 2 * 4 * 6 * 64 / 2
    assert found.cost.kv_bytes_per_token == 3 * 2 * 2 * 6 * 2
    assert inspect(directory, length=1).cost.flops_per_token < found.cost.flops_per_token
    text = str(found)
    assert "family            llama" in text
    assert "3 layers          Layer(attention=Attention(heads=4, kv_heads=2, head_dim=6" in text
    assert "cache             144 bytes per token in bfloat16, 144 per device" in text
    assert "layers.{0..2}.attn.q.kernel" in text


@pytest.mark.thorough
def test_it_is_json_too(directory):
    found = json.loads(json.dumps(inspect(directory, mesh=parse_mesh("fsdp=2,tensor=2")).json()))
    assert found["family"] == "llama"
    assert found["config"]["layers"][2]["mlp"]["hidden"] == 20
    assert found["total"]["device_bytes"] < found["total"]["bytes"] / 3
    (q,) = (row for row in found["parameters"] if row["path"] == "layers.{0..2}.attn.q.kernel")
    assert found["cost"]["kv_device_bytes_per_token"] == 144 / 2
    assert q["spec"] == ["fsdp", "tensor"]
    assert q["device_bytes"] == q["bytes"] / 4


def test_settings_tell_what_is_not_as_usual():
    other = dataclasses.replace(CONFIG.layers[0], norms="sandwich")
    config = dataclasses.replace(CONFIG, layers=(*CONFIG.layers, other), soft_cap=30.0)
    found = settings(config)
    assert found["soft_cap"] == "30.0"
    assert "embed_scale" not in found
    assert found["3 layers"].endswith("mlp=Mlp(hidden=20))")
    assert found["1 layers"].endswith("mlp=Mlp(hidden=20), norms=sandwich)")


@pytest.mark.thorough
def test_an_encoder(tmp_path):
    config = bert(vocab_size=40, embed=12, depth=1, heads=2, mlp=20, max_length=16)
    save(init(config, seed=0), tmp_path / "bert")
    found = inspect(tmp_path / "bert")
    assert found.cost is None
    assert found.json()["cost"] is None
    assert "family            bert" in str(found)
    assert read(tmp_path / "bert").config == config


def test_a_model_is_read_cast(directory):
    leaves = jax.tree.leaves(nnx.state(read(directory, dtype="bfloat16")))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize(
    "text, message",
    [
        ("fdsp=8", "got 'fdsp=8' in 'fdsp=8' .did you mean fsdp"),
        ("fsdp=8,fsdp=2", "each once with its size, as in fsdp=8,tensor=2; got 'fsdp=2'"),
        ("fsdp", "axes among context, data, expert, fsdp, tensor"),
        ("fsdp=0", "got 'fsdp=0'"),
        ("", "got ''"),
    ],
)
def test_a_mesh_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_mesh(text)


def test_a_sequence_without_tokens_is_refused(directory):
    with pytest.raises(ValueError, match="at least 1 token, got length=0: leave it out"):
        inspect(directory, length=0)
