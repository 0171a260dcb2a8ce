# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories whose tensors have other names than the family's, or more of them."""

import json

import numpy as np
import pytest
import safetensors.numpy

from dovetail_models import abstract, accepting, gpt2, load, qwen3, save, size

CONFIG = qwen3(vocab_size=31, embed=12, depth=2, heads=4, kv_heads=2, head_dim=6, mlp=20)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


@pytest.fixture
def directory(model, tmp_path):
    save(model, tmp_path / "model")
    return tmp_path / "model"


def edit(directory, change):
    tensors = safetensors.numpy.load_file(directory / WEIGHTS)
    change(tensors)
    safetensors.numpy.save_file(tensors, directory / WEIGHTS)


def edit_config(directory, **keys):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


PREFIXES = {
    "base model": lambda name: name.removeprefix("model."),
    "base model under a name": lambda name: name.replace("model.", "backbone."),
    "wrapper": lambda name: f"module.{name}",
    "wrapper, head outside": lambda name: f"model.{name}".replace("model.lm_head", "lm_head"),
}


@pytest.mark.parametrize("kind", PREFIXES)
def test_other_prefixes_are_read(kind, model, directory, leaves):
    renamed = PREFIXES[kind]

    def change(tensors):
        for name in [*tensors]:
            tensors[renamed(name)] = tensors.pop(name)

    edit(directory, change)
    got, want = leaves(load(directory)), leaves(model)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_a_base_model_without_a_head_is_refused_by_the_missing_tensor(directory):
    edit(directory, lambda tensors: tensors.pop("lm_head.weight"))
    edit_config(directory, architectures=["Qwen3Model"])
    with pytest.raises(ValueError, match=r"missing lm_head\.weight"):
        load(directory)


def test_gpt2_under_a_wrapper_is_read(random_model, tmp_path, leaves):
    ours = random_model(gpt2(vocab_size=31, embed=12, depth=1, heads=2))
    save(ours, tmp_path)

    def change(tensors):
        for name in [*tensors]:
            tensors[f"module.{name}"] = tensors.pop(name)

    edit(tmp_path, change)
    got, want = leaves(load(tmp_path)), leaves(ours)
    np.testing.assert_array_equal(got["embed.embedding"], want["embed.embedding"])


def test_frequencies_of_rope_are_left_out_as_in_transformers(directory):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit(directory, lambda tensors: tensors.update({name: np.ones(3, np.float32)}))
    assert load(directory).config == CONFIG
    assert load(directory, ignore=("**.rotary_emb.inv_freq",)).config == CONFIG


def test_extra_tensors_are_left_out_on_request(directory, caplog):
    extra = {f"model.layers.{i}.self_attn.k_cache.scale": np.ones(3, np.float32) for i in (0, 1)}
    edit(directory, lambda tensors: tensors.update(extra))
    with pytest.raises(ValueError, match=r"unexpected model\.layers\.0") as error:
        load(directory)
    assert 'for extra tensors that the model does not need pass ignore=("**.NAME",).' in str(
        error.value
    )
    pattern = "**.k_cache.scale"
    assert load(directory, ignore=(pattern,)).config == CONFIG
    assert "Left out, as the caller asks: model.layers.0.self_attn.k_cache.scale" in caplog.text
    with accepting(ignore=(pattern, "no.such.*"), allow=("my_note",)):
        edit_config(directory, my_note=1)
        assert size(abstract(directory).config) == size(CONFIG)
    with pytest.raises(ValueError, match="must match a tensor of the files") as error:
        load(directory, ignore=("**.inv_frequency",), allow=("my_note",))
    assert "got ignore='**.inv_frequency'" in str(error.value)
