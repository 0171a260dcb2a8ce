# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from dovetail_data import train_bpe
from dovetail_models import load, lora
from dovetail_stack.recipes.adapters import start
from dovetail_stack.recipes.continuation import continuation, opened
from dovetail_stack.recipes.fitting import fit
from dovetail_stack.recipes.record_options import Tuning

LENGTH = 24
BATCHING = {"length": LENGTH, "global_batch": 3, "save_every": 2, "seed": 1}
TOKENS = np.random.default_rng(0).integers(0, 320, (2, 9)).astype(np.int32)


def _kernels(model):
    return {p: x for p, x in nnx.to_flat_state(nnx.state(model, nnx.Param)) if "kernel" in p}


def test_the_default_rate_is_lower_and_ten_times_that_for_adapters():
    assert Tuning().learning_rate == 2e-5
    assert Tuning(lora_rank=2).learning_rate == 2e-4
    assert Tuning(lora_rank=2, learning_rate=0.5).learning_rate == 0.5
    with pytest.raises(ValueError, match=r"must be at least 0, got lora_rank=-1: leave it out"):
        Tuning(lora_rank=-1)


@pytest.mark.thorough
def test_adapters_are_on_every_matrix_of_the_layers_and_change_nothing_yet(source):
    model = start(source, Tuning(**BATCHING, lora_rank=2))
    names = {".".join(path.split(".")[2:]) for path in lora.adapters(model)}
    assert names == {*(f"attn.{x}" for x in "qkvo"), *(f"mlp.{x}" for x in ("gate", "up", "down"))}
    assert len(list(lora.adapters(model))) == 7
    np.testing.assert_array_equal(model(TOKENS), load(source)(TOKENS))


@pytest.mark.thorough
@pytest.mark.parametrize("rank, launches", [(0, (3,)), (2, (2, 3))])
def test_what_is_trained_and_saved_is_everything_or_the_adapters(
    source, rows, leaves, tmp_path, rank, launches
):
    """On a mesh of Explicit axes, in one launch or two."""
    mesh = jax.make_mesh((1, 1), ("data", "fsdp"), devices=jax.devices()[:1])
    tuning = Tuning(**BATCHING, lora_rank=rank, learning_rate=0.01, precision="bfloat16")
    for steps in launches:
        model, _ = fit(continuation(source, tuning, mesh=mesh), rows, tmp_path, steps=steps)
    assert model.embed.embedding.get_value().sharding.mesh == mesh
    before, after = _kernels(load(source)), _kernels(model)
    assert after.keys() == before.keys()  # adapters were merged
    assert all(np.any(after[path].get_value() != x.get_value()) for path, x in before.items())
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(nnx.state(model)))
    embeddings = [m.embed.embedding.get_value() for m in (model, load(source))]
    assert np.array_equal(*embeddings) == (rank > 0)
    saved = leaves(tmp_path / "checkpoints" / "3")
    assert any("embedding" in name for name in saved["params"]) == (rank == 0)
    assert not [name for name in saved["train"] if name.startswith("frozen/")]


@pytest.mark.thorough
def test_a_base_that_changed_since_the_run_began_is_refused(source, rows, tmp_path):
    from dovetail_models import save

    base = tmp_path / "base"
    shutil.copytree(source, base)
    recipe = continuation(base, Tuning(**BATCHING, lora_rank=2))
    fit(recipe, rows, tmp_path / "run", steps=3, stop=lambda step: step == 1)
    model = load(base)
    model.norm.scale.set_value(model.norm.scale.get_value() * 2)
    shutil.rmtree(base)
    save(model, base, like=source)
    with pytest.raises(ValueError, match=r"since step 1, first norm.scale: put back the directory"):
        fit(recipe, rows, tmp_path / "run", steps=3)


@pytest.fixture
def copied(source, tmp_path):
    shutil.copytree(source, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.thorough
def test_a_tokenizer_may_have_fewer_or_more_ids_than_the_model(copied):
    train_bpe(["some text of other words " * 40], copied / "tokenizer.json", vocab_size=270)
    config, tokenizer = opened(copied, length=LENGTH)
    assert tokenizer.vocab_size < config.vocab_size  # rows to spare are usual
    keys = json.loads((copied / "tokenizer.json").read_text())
    added = {**keys["added_tokens"][0], "id": 400, "content": "<|more|>"}
    keys["added_tokens"].append(added)
    keys["model"]["vocab"]["<|more|>"] = 400
    (copied / "tokenizer.json").write_text(json.dumps(keys))
    config, tokenizer = opened(copied, length=LENGTH)
    assert (config.vocab_size, tokenizer.vocab_size) == (320, 401)


def test_a_quantized_directory_is_refused(copied):
    keys = json.loads((copied / "config.json").read_text())
    keys["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    (copied / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ValueError, match=r"not quantized, got .* dovetail models convert"):
        opened(copied, length=LENGTH)


def test_rows_longer_than_the_model_knows_are_refused(source):
    with pytest.raises(ValueError, match=r"the 24 positions .* got length=25: pass --length 24"):
        opened(source, length=25)
