# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from dovetail_models import abstract, llama, load, qwen3, save

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
    """Rewrite the weights of a directory, by the format's own library."""
    tensors = safetensors.numpy.load_file(directory / WEIGHTS)
    change(tensors)
    safetensors.numpy.save_file(tensors, directory / WEIGHTS)


def edit_config(directory, **keys):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_every_leaf_comes_back(model, directory, leaves):
    got, want = leaves(load(directory)), leaves(model)
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
    assert load(directory).config == CONFIG


def test_names_are_those_of_transformers(model, directory):
    tensors = safetensors.numpy.load_file(directory / WEIGHTS)
    kernel = model.layers[1].mlp.down.kernel[...]
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.down_proj.weight"], kernel.T)
    scale = model.layers[0].attn.k_norm.scale[...]
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.k_norm.weight"], scale)


def test_dtypes_are_kept_or_cast(directory, leaves, random_model, tmp_path):
    assert {str(x.dtype) for x in leaves(load(directory, dtype=jnp.bfloat16)).values()} == {
        "bfloat16"
    }
    half = random_model(CONFIG, dtype=jnp.bfloat16)
    save(half, tmp_path / "half")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    got, wide = leaves(load(tmp_path / "half")), leaves(load(tmp_path / "half", dtype=np.float32))
    for name, leaf in leaves(half).items():
        assert got[name].tobytes() == leaf.tobytes()
        np.testing.assert_array_equal(wide[name], leaf.astype(np.float32))


def test_without_a_mesh_parameters_are_uncommitted(directory):
    assert not any(leaf.committed for leaf in jax.tree.leaves(nnx.state(load(directory))))


def test_abstract_reads_headers_and_places(directory, random_model, tmp_path):
    mesh = jax.make_mesh((1, 1), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    for source in (directory, CONFIG):
        outline = abstract(source, mesh=mesh)
        struct = outline.layers[0].attn.q.kernel.get_value()
        assert isinstance(struct, jax.ShapeDtypeStruct)
        assert (struct.shape, struct.dtype) == ((12, 24), jnp.float32)
        assert struct.sharding.spec == PartitionSpec("fsdp", "tensor")
    save(random_model(CONFIG, dtype=jnp.bfloat16), tmp_path / "half")
    assert abstract(tmp_path / "half").norm.scale.dtype == jnp.bfloat16


def test_all_wrong_tensors_are_told_at_once(directory):
    def change(tensors):
        tensors["model.layers.0.self_attn.q_porj.weight"] = tensors.pop(
            "model.layers.0.self_attn.q_proj.weight"
        )
        del tensors["model.norm.weight"]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].copy()

    edit(directory, change)
    with pytest.raises(ValueError, match=r"must be those of config\.json") as error:
        load(directory)
    lines = str(error.value).splitlines()
    assert lines[1:5] == [
        "  missing model.layers.0.self_attn.q_proj.weight (24, 12)"
        " (near: model.layers.0.self_attn.q_porj.weight)",
        "  missing model.norm.weight (12,)",
        "  unexpected model.layers.0.self_attn.q_porj.weight (24, 12)"
        " (near: model.layers.0.self_attn.q_proj.weight)",
        "  misshapen lm_head.weight: (30, 12) where config.json gives (31, 12)",
    ]
    assert lines[5] == "Use the config.json that was saved with these files."


def test_a_stored_copy_of_a_tied_head_must_be_a_copy(random_model, tmp_path):
    tied = random_model(llama(vocab_size=9, embed=4, depth=1, heads=2, mlp=5, tie=True))
    save(tied, tmp_path / "tied")

    def copy(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(1, np.float32)

    edit(tmp_path / "tied", copy)
    assert load(tmp_path / "tied").lm_head is None
    edit(tmp_path / "tied", lambda tensors: tensors["lm_head.weight"].__imul__(2))
    with pytest.raises(ValueError, match=r"lm_head\.weight must equal") as error:
        load(tmp_path / "tied")
    assert "got two that differ" in str(error.value)
    assert "Set tie_word_embeddings=false" in str(error.value)


def test_an_unknown_key_is_refused_unless_allowed(directory):
    edit_config(directory, attention_multiplier=0.5)
    with pytest.raises(ValueError, match="got attention_multiplier="):
        load(directory)
    allowed = load(directory, allow=("attention_multiplier",))
    assert ("attention_multiplier", "0.5") in allowed.config.extra


def test_a_file_that_is_missing_is_told(directory, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"directory with config\.json") as error:
        load(tmp_path / "nowhere")
    assert "nowhere" in str(error.value)
    assert "Pass the directory that save" in str(error.value)
    (directory / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold model\.safetensors") as error:
        load(directory)
    assert "without model.safetensors" in str(error.value)
    assert "converted to safetensors" in str(error.value)


def test_a_truncated_file_is_told(directory):
    whole = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="cut short"):
        load(directory)
