# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail_models import llama, load, load_encoder, save, vit
from dovetail_models.config.encoder import TokenPool
from dovetail_models.hf.config import describe, parse

pytestmark = pytest.mark.capability("Hugging Face directories of ViT")

# As published with Google's vit-base-patch16-224, but for the names of most classes; two classes
# of ImageNet share a name.
NAMES = ["tench", "crane", "maillot", "crane"]
VIT_BASE = {
    "architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {str(i): name for i, name in enumerate(NAMES)},
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "label2id": {"tench": 0, "crane": 3, "maillot": 2},
    "layer_norm_eps": 1e-12,
    "model_type": "vit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
    "transformers_version": "4.13.0.dev0",
}
SIZES = {"embed": 12, "depth": 2, "heads": 3, "mlp": 20}
BASE = {"embed": 768, "depth": 12, "heads": 12, "mlp": 3072}


def test_a_published_config_is_read():
    config = parse(VIT_BASE)
    want = vit(image_size=224, patch=16, **BASE, labels=tuple(NAMES))
    assert dataclasses.replace(config, extra=()) == want
    layer = config.layers[0]
    assert (layer.norms, layer.mlp.activation, layer.attention.qkv_bias) == ("pre", "gelu", True)
    assert (config.norm.eps, config.class_token, config.pooler) == (1e-12, True, None)
    # 14 by 14 patches and the class token.
    assert (config.grid, config.length) == ((14, 14), 197)
    written = describe(config)
    assert {name: written[name] for name in ("id2label", "label2id")} == {
        name: VIT_BASE[name] for name in ("id2label", "label2id")
    }


def test_a_model_without_labels_has_a_pooler():
    keys = {"architectures": ["ViTModel"], "image_size": [224, 320], "pooler_output_size": 99}
    config = parse(VIT_BASE | keys)
    want = vit(image_size=(224, 320), patch=16, **BASE, pooler=99)
    assert dataclasses.replace(config, extra=()) == want
    assert config.pooler == TokenPool(width=99)
    # Names of classes that no head tells apart are kept as they are.
    assert describe(config)["id2label"] == VIT_BASE["id2label"]


def test_a_classifier_without_names_tells_two_apart():
    config = parse({name: VIT_BASE[name] for name in VIT_BASE if "label" not in name})
    assert config.labels == ("LABEL_0", "LABEL_1")


BAD = {
    "a head": ({"architectures": ["ViTForMaskedImageModeling"]}, "must be ['ViTModel'] or"),
    "a pooler": ({"architectures": ["ViTModel"], "pooler_act": "relu"}, "got pooler_act='relu'"),
    "a patch": ({"patch_size": [16, 8]}, "must be a square here, got patch_size=[16, 8]"),
    "an image": ({"image_size": [1, 2, 3]}, "a pair of them, got image_size=[1, 2, 3]"),
    "a class": ({"id2label": {"1": "a", "2": "b"}}, "from 0 to 1, got numbers ['1', '2']"),
    "an unknown key": ({"layerscale": 1.0}, "got layerscale=1.0"),
}


@pytest.mark.parametrize("keys, part", BAD.values(), ids=BAD)
def test_what_no_module_computes_is_refused(keys, part):
    with pytest.raises(ValueError, match=r".") as error:
        parse(VIT_BASE | keys)
    assert part in str(error.value)


@pytest.mark.parametrize("options", [{"pooler": 7}, {"labels": ("a", "b", "c")}])
def test_names_begin_with_vit_where_there_is_a_classifier(options, random_model, leaves, tmp_path):
    model = random_model(vit(image_size=(6, 9), patch=3, **SIZES, **options))
    save(model, tmp_path / "it")
    tensors = load_file(tmp_path / "it" / "model.safetensors")
    bare = {name for name in tensors if not name.startswith("vit.")}
    assert bare == ({"classifier.weight", "classifier.bias"} if "labels" in options else {*tensors})
    again = load_encoder(tmp_path / "it")
    assert again.config == model.config
    want, got = leaves(model), leaves(again)
    assert want.keys() == got.keys()
    assert all(np.array_equal(got[name], want[name]) for name in want)
    prefix = "vit." if "labels" in options else ""
    kernel = tensors[prefix + "embeddings.patch_embeddings.projection.weight"]
    # torch: [out, in, height, width].
    np.testing.assert_array_equal(kernel[5, 1], want["patch.kernel"][:, :, 1, 5])


def test_a_decoder_is_not_an_encoder(random_model, tmp_path):
    save(random_model(vit(image_size=6, patch=3, **SIZES)), tmp_path / "image")
    with pytest.raises(ValueError, match="load reads a decoder") as error:
        load(tmp_path / "image")
    assert "with model_type='vit', a VisionEncoder" in str(error.value)
    assert "Use load_encoder(path)" in str(error.value)
    save(random_model(llama(vocab_size=5, **SIZES)), tmp_path / "text")
    with pytest.raises(ValueError, match="load_encoder reads an encoder") as error:
        load_encoder(tmp_path / "text")
    assert "with model_type='llama', a Decoder" in str(error.value)
    assert "Use load(path)" in str(error.value)
