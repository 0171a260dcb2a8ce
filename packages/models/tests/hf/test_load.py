# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import logging

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import forced_devices
import warm_start
from dovetail_models import (
    gpt2,
    gpt_oss,
    llama,
    load,
    mixtral,
    qwen3,
    save,
)

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


@pytest.mark.thorough
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


def test_a_dtype_that_jax_does_not_know_is_refused(directory, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"a dtype of JAX, got dtype='bf16'. Use jnp.bfloat16"):
        load(directory, dtype="bf16")


def test_without_a_mesh_parameters_are_uncommitted(directory):
    assert not any(leaf.committed for leaf in jax.tree.leaves(nnx.state(load(directory))))


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
    assert lines[5].startswith("Use the config.json that was saved with these files; for extra")


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    "dtype, told",
    [(np.int64, r"must be of dtype .* got dtype=I64"), (np.float16, "got two that differ")],
)
def test_a_stored_copy_of_another_dtype_is_refused(random_model, tmp_path, dtype, told):
    tied = random_model(llama(vocab_size=9, embed=4, depth=1, heads=2, mlp=5, tie=True))
    save(tied, tmp_path / "tied")

    def copy(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].astype(dtype)

    edit(tmp_path / "tied", copy)
    with pytest.raises(ValueError, match=told):
        load(tmp_path / "tied")


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
    assert str(error.value).endswith("Fetch those files.")


def test_a_truncated_file_is_told(directory):
    whole = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="cut short"):
        load(directory)


# Wider than the squares that stacks are copied by.
MIXTRAL = mixtral(vocab_size=16, embed=136, depth=1, heads=4, kv_heads=2, mlp=140, experts=4)
GPT2 = gpt2(vocab_size=16, embed=8, depth=1, heads=2, max_length=6)
# MXFP4 has groups of 32 inputs.
GPT_OSS = gpt_oss(vocab_size=16, embed=32, depth=1, heads=2, kv_heads=2, mlp=64, experts=2, top_k=1)
FP8 = {"quant_method": "fp8", "weight_block_size": [5, 3]}
# The numbers of a 4-bit float (OCP Microscaling Formats 1.0, table 5) and exact 8-bit floats.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = {0x38: 1.0, 0x3C: 1.5, 0xB8: -1.0, 0x48: 4.0, 0x01: 2.0**-9, 0x7E: 448.0}


def same_leaves(got, want):
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype, name
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def test_experts_are_read_one_by_one_and_fused(random_model, tmp_path, leaves):
    model = random_model(MIXTRAL)
    save(model, tmp_path / "m")
    block = "model.layers.0.block_sparse_moe"
    tensors = safetensors.numpy.load_file(tmp_path / "m" / WEIGHTS)
    up = np.asarray(model.layers[0].mlp.experts.up.kernel[...])
    np.testing.assert_array_equal(tensors[f"{block}.experts.2.w3.weight"], up[2].T)
    same_leaves(leaves(load(tmp_path / "m")), leaves(model))

    def fuse(tensors):
        def stack(name):
            return np.stack([tensors.pop(f"{block}.experts.{e}.{name}.weight") for e in range(4)])

        gate, up, down = stack("w1"), stack("w3"), stack("w2")
        tensors["model.layers.0.mlp.gate.weight"] = tensors.pop(f"{block}.gate.weight")
        both = np.concatenate([gate, up], axis=1)
        tensors["model.layers.0.mlp.experts.gate_up_proj"] = both
        tensors["model.layers.0.mlp.experts.down_proj"] = down

    edit(tmp_path / "m", fuse)
    same_leaves(leaves(load(tmp_path / "m")), leaves(model))


def test_fused_projections_and_a_missing_prefix(random_model, tmp_path, leaves):
    model = random_model(GPT2)
    save(model, tmp_path / "m")
    tensors = safetensors.numpy.load_file(tmp_path / "m" / WEIGHTS)
    qkv = [getattr(model.layers[0].attn, name).kernel[...] for name in "qkv"]
    fused = tensors["transformer.h.0.attn.c_attn.weight"]
    np.testing.assert_array_equal(fused, np.concatenate(qkv, axis=1))
    same_leaves(leaves(load(tmp_path / "m")), leaves(model))

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    edit(tmp_path / "m", strip)
    same_leaves(leaves(load(tmp_path / "m")), leaves(model))


@pytest.fixture
def quantise(write_raw):
    """A function that rewrites a directory: its tensors, and what config.json says of them."""

    def rewrite(directory, change, quantization):
        tensors = safetensors.numpy.load_file(directory / WEIGHTS)
        (directory / WEIGHTS).unlink()
        write_raw(directory / WEIGHTS, change(tensors))
        edit_config(directory, quantization_config=quantization)

    return rewrite


@pytest.fixture
def fp8_directory(random_model, tmp_path, quantise, leaves):
    """A Mixtral with fp8 experts, and its leaves: codes times the scale of their block."""
    rng = np.random.default_rng(5)
    model = random_model(MIXTRAL)
    save(model, tmp_path / "fp8")
    plain, decoded = {}, np.full(256, np.nan)
    decoded[list(E4M3)] = list(E4M3.values())

    def change(tensors):
        found = {}
        for name, array in tensors.items():
            if ".experts." not in name:
                found[name] = ("F32", array)
                continue
            codes = rng.choice(np.array(list(E4M3), np.uint8), array.shape)
            rows, columns = array.shape
            # Powers of two keep every product exact.
            scales = 2.0 ** rng.integers(-3, 4, (-(-rows // 5), -(-columns // 3)))
            found[name] = ("F8_E4M3", codes)
            found[f"{name}_scale_inv"] = ("F32", scales.astype(np.float32))
            by_element = np.repeat(np.repeat(scales, 5, 0), 3, 1)[:rows, :columns]
            plain[name] = decoded[codes] * by_element
        return found

    quantise(tmp_path / "fp8", change, FP8)
    want = leaves(model)
    for ours, theirs in {"gate": 1, "up": 3, "down": 2}.items():
        names = [f"model.layers.0.block_sparse_moe.experts.{e}.w{theirs}.weight" for e in range(4)]
        kernel = np.stack([plain[name].T for name in names]).astype(jnp.bfloat16)
        want[f"layers.0.mlp.experts.{ours}.kernel"] = kernel
    return tmp_path / "fp8", want


@pytest.fixture
def mxfp4_directory(random_model, tmp_path, quantise, leaves):
    """A gpt-oss with MXFP4 experts, and its leaves: gate and up alternate."""
    rng = np.random.default_rng(6)
    model = random_model(GPT_OSS)
    save(model, tmp_path / "mxfp4")
    plain = {}

    def change(tensors):
        found = {}
        for name, array in tensors.items():
            if not name.endswith(("gate_up_proj", "down_proj")):
                found[name] = ("F32", array)
                continue
            stack, inputs, rows = array.shape
            codes = rng.integers(0, 256, (stack, rows, inputs // 32, 16), np.uint8)
            scales = rng.integers(120, 135, codes.shape[:3], np.uint8)
            found[f"{name}_blocks"], found[f"{name}_scales"] = ("U8", codes), ("U8", scales)
            halves = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1)
            values = halves * 2.0 ** (scales[..., None, None].astype(np.float64) - 127)
            plain[name] = values.reshape(stack, rows, inputs).swapaxes(1, 2).astype(jnp.bfloat16)
        return found

    quantise(tmp_path / "mxfp4", change, {"quant_method": "mxfp4"})
    want, experts = leaves(model), "layers.0.mlp.experts"
    gate_up = plain["model.layers.0.mlp.experts.gate_up_proj"]
    want[f"{experts}.gate.kernel"], want[f"{experts}.up.kernel"] = (
        gate_up[..., ::2],
        gate_up[..., 1::2],
    )
    want[f"{experts}.down.kernel"] = plain["model.layers.0.mlp.experts.down_proj"]
    return tmp_path / "mxfp4", want


@pytest.mark.capability("files in fp8 and MXFP4, in")
@pytest.mark.parametrize("directory_of", ["fp8_directory", "mxfp4_directory"])
def test_quantised_weights_become_bfloat16(request, directory_of, leaves, tmp_path):
    directory, want = request.getfixturevalue(directory_of)
    model = load(directory)
    same_leaves(leaves(model), want)
    wide = leaves(load(directory, dtype=np.float32))
    same_leaves(wide, {name: leaf.astype(np.float32) for name, leaf in want.items()})
    save(model, tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again/config.json").read_text())
    same_leaves(leaves(load(tmp_path / "again")), want)


def test_a_vocabulary_is_cut_to_that_of_the_config(model, directory, leaves, caplog):
    def pad(tensors):
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = np.pad(tensors[name], ((0, 33), (0, 0)), constant_values=9)

    edit(directory, pad)
    with caplog.at_level(logging.WARNING):
        same_leaves(leaves(load(directory)), leaves(model))
    assert "from the 64 rows of the files to vocab_size=31" in caplog.text


EIGHT_DEVICES = """
import sys
from pathlib import Path
import jax, numpy as np
from flax import nnx
from jax.sharding import AxisType
from dovetail_models import load, save, shardings
from dovetail_models.placing.shard import WEIGHTS

mesh = jax.make_mesh((2, 2, 2), ("expert", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
for directory in map(Path, sys.argv[1:]):
    alone, placed = load(directory), load(directory, mesh=mesh)
    places = shardings(placed, mesh, only=WEIGHTS)
    trees = (nnx.state(placed, WEIGHTS), places, nnx.state(alone, WEIGHTS))
    for leaf, place, one in zip(*map(jax.tree.leaves, trees), strict=True):
        assert leaf.sharding == place, (leaf.sharding, place)
        np.testing.assert_array_equal(leaf, one)
    for name, model in (("alone", alone), ("placed", placed)):
        save(model, directory / name, file_bytes=9000)
    for file in (directory / "alone").iterdir():
        assert file.read_bytes() == (directory / "placed" / file.name).read_bytes(), file
print("equal")
"""


@pytest.mark.thorough
def test_eight_devices_read_and_write_what_one_does(
    random_model, fp8_directory, mxfp4_directory, tmp_path
):
    save(random_model(GPT2), tmp_path / "gpt2")
    # The vocabulary of a GPT-2 is padded to what its devices divide, and cut on the way.
    edit_config(tmp_path / "gpt2", vocab_size=14)
    paths = [fp8_directory[0], mxfp4_directory[0], tmp_path / "gpt2"]
    environment = forced_devices.environment(8)
    command = ["-W", "error", "-c", EIGHT_DEVICES, *map(str, paths)]
    done = warm_start.run(command, env=environment)
    assert done.stdout == "equal\n", done.stderr
