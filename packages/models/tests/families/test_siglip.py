# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dovetail_models import load_encoder, save, siglip, siglip_text, siglip_vision
from dovetail_models.config.encoder import AttentionPool, TokenPool
from dovetail_models.hf.config import describe, parse

pytestmark = pytest.mark.capability("Hugging Face directories of SigLIP")

# As published with Google's siglip-so400m-patch14-384: what is not said has a default.
SO400M = {
    "architectures": ["SiglipModel"],
    "initializer_factor": 1.0,
    "model_type": "siglip",
    "text_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "model_type": "siglip_text_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
    },
    "torch_dtype": "float32",
    "transformers_version": "4.37.0.dev0",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 384,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}
SO = {"embed": 1152, "depth": 27, "heads": 16, "mlp": 4304}
SIZES = {"embed": 12, "depth": 2, "heads": 3, "mlp": 20}
TEXT = siglip_text(vocab_size=31, max_length=9, norm_eps=1e-3, width=8, **SIZES)
VISION = siglip_vision(
    image_size=8, patch=3, embed=8, depth=1, heads=2, mlp=10, norm_eps=1e-4, channels=1
)


def test_a_published_config_is_read():
    config = parse(SO400M)
    text = siglip_text(vocab_size=32_000, max_length=64, **SO)
    vision = siglip_vision(image_size=384, patch=14, **SO)
    assert dataclasses.replace(config, extra=()) == siglip(text=text, vision=vision)
    for tower in (text, vision):
        layer = tower.layers[0]
        assert (layer.norms, layer.mlp.activation) == ("pre", "gelu_tanh")
        assert tower.norm.eps == 1e-6
    assert text.pooler == TokenPool(width=1152, last=True, tanh=False)
    assert isinstance(vision.pooler, AttentionPool)
    # 27 patches of 14 pixels in a row of 384, six pixels of which are left out; no class token.
    assert (vision.grid, vision.length) == ((27, 27), 729)


def test_each_encoder_has_its_own_epsilon():
    keys = describe(siglip(text=TEXT, vision=VISION))
    assert keys["text_config"]["layer_norm_eps"] == 1e-3
    assert keys["vision_config"]["layer_norm_eps"] == 1e-4
    assert parse(keys) == siglip(text=TEXT, vision=VISION)


def test_what_is_unknown_inside_is_refused_and_what_is_allowed_written_back():
    keys = SO400M | {"text_config": SO400M["text_config"] | {"rotary": 3, "pad_token_id": 1}}
    with pytest.raises(ValueError, match="Every key of config") as error:
        parse(keys)
    assert "got rotary=3" in str(error.value)
    assert "pass allow=('rotary',)" in str(error.value)
    config = parse(keys, allow=("rotary",))
    assert dict(config.text.extra) == {"rotary": "3", "pad_token_id": "1"}
    assert keys["text_config"].items() <= describe(config)["text_config"].items()


BAD = {
    "a head": ({"architectures": ["SiglipForImageClassification"]}, "got architectures="),
    "no object": ({"text_config": 3}, "must be an object, got text_config=3"),
    "another tower": (
        {"vision_config": {"model_type": "clip_vision_model"}},
        "got model_type='clip_vision_model'",
    ),
    "no pooler": ({"vision_config": {"vision_use_head": False}}, "Give both a pooler"),
    "widths": ({"text_config": {"projection_size": 8}}, "of the same width"),
}


@pytest.mark.parametrize("keys, part", BAD.values(), ids=BAD)
def test_what_no_module_computes_is_refused(keys, part):
    with pytest.raises(ValueError, match=r".") as error:
        parse(SO400M | keys)
    assert part in str(error.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, prefix",
    [(TEXT, "text_model."), (VISION, "vision_model."), (siglip(text=TEXT, vision=VISION), "")],
)
def test_files_of_all_and_of_parts_are_written_and_read(
    config, prefix, random_model, leaves, tmp_path
):
    model = random_model(config)
    save(model, tmp_path / "it")
    file = tmp_path / "it" / "model.safetensors"
    tensors = load_file(file)
    # Older files of a part name it, and hold the numbers of positions.
    ids = {f"{prefix}embeddings.position_ids": np.arange(9)[None]} if prefix else {}
    save_file({prefix + name: tensor for name, tensor in tensors.items()} | ids, file)
    again = load_encoder(tmp_path / "it")
    assert again.config == config
    want, got = leaves(model), leaves(again)
    assert want.keys() == got.keys()
    assert all(np.array_equal(got[name], want[name]) for name in want)
    kind = json.loads((tmp_path / "it" / "config.json").read_text())["model_type"]
    assert kind == config.family


def test_the_query_key_and_value_of_the_probe_are_one_tensor(random_model, leaves, tmp_path):
    model = random_model(VISION)
    save(model, tmp_path / "it")
    tensors, mine = load_file(tmp_path / "it" / "model.safetensors"), leaves(model)
    fused = tensors["head.attention.in_proj_weight"]
    assert fused.shape == (24, 8)
    np.testing.assert_array_equal(fused[8:16], mine["pooler.k.kernel"].T)
    np.testing.assert_array_equal(
        tensors["head.attention.in_proj_bias"][16:], mine["pooler.v.bias"]
    )
