# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from dovetail_models import abstract, gpt2, llama, lora

CONFIG = llama(vocab_size=31, embed=12, depth=2, heads=2, kv_heads=1, mlp=20)
PREFIX = "base_model.model.model.layers.1.self_attn"


@pytest.fixture
def model(random_model):
    return random_model(CONFIG)


@pytest.fixture
def files(model, adapt, tmp_path):
    """A directory with adapters on q and v, and a function that rewrites its tensors."""
    lora.save_peft(adapt(model, "layers.*.attn.{q,v}"), tmp_path / "a", base=None)

    def rewrite(change):
        tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
        save_file(change(tensors), tmp_path / "a" / "adapter_model.safetensors")
        return tmp_path / "a"

    return rewrite


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_what_is_saved_loads(model, adapt, leaves, tmp_path, dtype):
    new = adapt(model, "layers.*.attn.q", dtype=dtype, rslora=True)
    new = adapt(new, "layers.1.mlp.down", rank=5, alpha=0.25, dtype=dtype, rslora=True)
    lora.save_peft(new, tmp_path / "a", base=None)
    back = lora.load_peft(model, tmp_path / "a")
    assert nnx.graphdef(back) == nnx.graphdef(new)
    want, got = leaves(new), leaves(back)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_array_equal(got[name], want[name])
    outline = lora.load_peft(abstract(CONFIG), tmp_path / "a")
    assert isinstance(outline.layers[1].mlp.down.lora_b.get_value(), jax.ShapeDtypeStruct)


def test_names_and_layout_are_those_of_peft(model, adapt, tmp_path):
    new = adapt(model, ("layers.*.attn.q", "layers.1.mlp.down"))
    lora.save_peft(new, tmp_path / "a", base="me/base")
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    a, b = new.layers[1].attn.q.lora_a[...], new.layers[1].attn.q.lora_b[...]
    np.testing.assert_array_equal(tensors[f"{PREFIX}.q_proj.lora_A.weight"], a.T)
    np.testing.assert_array_equal(tensors[f"{PREFIX}.q_proj.lora_B.weight"], b.T)
    assert len(tensors) == 6
    keys = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert keys["base_model_name_or_path"] == "me/base"
    assert not keys["fan_in_fan_out"]
    # All q projections have one; of the down projections one has.
    assert keys["target_modules"] == ["model.layers.1.mlp.down_proj", "q_proj"]


def test_a_path_in_use_is_left_alone(model, adapt, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="writes a new directory") as error:
        lora.save_peft(adapt(model, "layers.0.attn.q"), tmp_path, base=None)
    assert f"path={str(tmp_path)!r}" in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_failure_leaves_nothing(model, adapt, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dovetail_models.surgery.peft.safetensors.write", full)
    with pytest.raises(OSError, match="No space left"):
        lora.save_peft(adapt(model, "layers.0.attn.q"), tmp_path / "a", base=None)
    assert not list(tmp_path.iterdir())


def test_mixed_scales_cannot_be_said(model, adapt, tmp_path):
    new = adapt(adapt(model, "layers.0.attn.q"), "layers.1.attn.q", rslora=True)
    with pytest.raises(ValueError, match="one kind of scale") as error:
        lora.save_peft(new, tmp_path / "a", base=None)
    assert "rslora=True and with rslora=False" in str(error.value)
    assert "the same rslora" in str(error.value)


def test_a_fused_projection_cannot_be_said(random_model, adapt, tmp_path):
    model = random_model(gpt2(vocab_size=31, embed=12, depth=1, heads=2))
    with pytest.raises(ValueError, match="a gpt2 file keeps as a tensor of its own") as error:
        lora.save_peft(adapt(model, "layers.0.attn.{q,o}"), tmp_path / "a", base=None)
    assert "got ['layers.0.attn.q']" in str(error.value)
    assert "lora.merge" in str(error.value)


def test_a_model_without_adapters_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="must have adapters, got one without any") as error:
        lora.save_peft(model, tmp_path / "a", base=None)
    assert "lora.insert" in str(error.value)


Q_A, Q_B = f"{PREFIX}.q_proj.lora_A.weight", f"{PREFIX}.q_proj.lora_B.weight"


@pytest.mark.parametrize(
    "change, parts",
    [
        (
            lambda t: {n: x for n, x in t.items() if n != Q_B},
            [f"missing {Q_B} (12, 3)"],
        ),
        (
            lambda t: t | {Q_A: t[Q_A][:2]},
            [f"misshapen {Q_A}: (2, 12) where", "give (3, 12)"],
        ),
        (
            lambda t: t | {Q_A.replace("q_proj", "qq_proj"): t[Q_A]},
            ["unexpected ", f"(near: {Q_A})"],
        ),
        (
            lambda t: {n.replace("layers.1", "layers.7"): x for n, x in t.items()},
            ["unexpected base_model.model.model.layers.7", "unexpected "],
        ),
        (lambda t: {}, ["no tensor at all"]),
    ],
)
def test_tensors_of_another_model_are_refused(model, files, change, parts):
    path = files(change)
    with pytest.raises(ValueError, match="must be adapters of this model's projections") as error:
        lora.load_peft(model, path)
    for part in (*parts, "the base model that it was trained on"):
        assert part in str(error.value)


def test_a_second_adapter_is_refused(model, adapt, files):
    path = files(lambda tensors: tensors)
    with pytest.raises(ValueError, match="takes one adapter") as error:
        lora.load_peft(adapt(model, "layers.0.attn.q"), path)
    assert "lora.merge(model)" in str(error.value)


def test_a_directory_without_an_adapter_is_refused(model, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(
        FileNotFoundError, match=re.escape("['adapter_model.safetensors']")
    ) as error:
        lora.load_peft(model, tmp_path)
    assert f"path={str(tmp_path)!r}" in str(error.value)
    assert "Pass the directory that save_pretrained wrote" in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"r": 1, "r": 2}'])
def test_a_damaged_config_is_refused(model, files, text):
    path = files(lambda tensors: tensors)
    (path / "adapter_config.json").write_text(text)
    with pytest.raises(ValueError, match="must hold a JSON object") as error:
        lora.load_peft(model, path)
    assert f"path={str(path / 'adapter_config.json')!r}" in str(error.value)
    assert "Restore the file" in str(error.value)
