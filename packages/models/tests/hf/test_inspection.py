# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import pytest
from jax.sharding import AbstractMesh

from dovetail_models import Inspection, abstract, bert, describe, init, inspect, llama, save

CONFIG = llama(
    vocab_size=40, embed=12, depth=3, heads=4, kv_heads=2, head_dim=6, mlp=20, max_length=64
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama"
    save(init(CONFIG, seed=0), path)
    return path


@pytest.mark.capability("cost of a directory, from its headers")
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
    assert repr(found).startswith("Inspection(llama, Description(12 rows, ")
    assert "family            llama" in text
    assert "3 layers          Layer(attention=Attention(heads=4, kv_heads=2, head_dim=6" in text
    assert "cache             144 bytes per token in bfloat16, 144 per device" in text
    assert "layers.{0..2}.attn.q.kernel" in text


@pytest.mark.thorough
def test_it_is_json_too(directory):
    mesh = AbstractMesh((2, 2), ("fsdp", "tensor"))
    found = json.loads(json.dumps(inspect(directory, mesh=mesh).json()))
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
    found = Inspection(config=config, description=describe(abstract(config)), cost=None)
    lines = {line[:18].rstrip(): line[18:] for line in str(found).splitlines()}
    assert lines["soft_cap"] == "30.0"
    assert "embed_scale" not in lines
    assert lines["3 layers"].endswith("mlp=Mlp(hidden=20))")
    assert lines["1 layers"].endswith("mlp=Mlp(hidden=20), norms=sandwich)")


@pytest.mark.thorough
def test_an_encoder(tmp_path):
    config = bert(vocab_size=40, embed=12, depth=1, heads=2, mlp=20, max_length=16)
    save(init(config, seed=0), tmp_path / "bert")
    found = inspect(tmp_path / "bert")
    assert found.cost is None
    assert found.json()["cost"] is None
    assert "family            bert" in str(found)


def test_a_sequence_without_tokens_is_refused(directory):
    with pytest.raises(ValueError, match="at least 1 token, got length=0: leave it out"):
        inspect(directory, length=0)
