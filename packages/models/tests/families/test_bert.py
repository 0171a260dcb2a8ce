# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import logging

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dovetail_models import bert, load_encoder, save
from dovetail_models.config.encoder import TokenPool
from dovetail_models.hf.config import describe, parse

pytestmark = pytest.mark.capability("Hugging Face directories of BERT")

# As published with sentence-transformers' all-MiniLM-L6-v2.
MINILM = {
    "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.8.2",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
CONFIG = bert(vocab_size=31, embed=12, depth=2, heads=3, mlp=20, max_length=17)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


@pytest.fixture
def stored(model, tmp_path):
    """What we write, and a function that writes tensors beside the same config.json."""
    save(model, tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")

    def write(tensors):
        save_file(tensors, tmp_path / "plain" / "model.safetensors")
        return tmp_path / "plain"

    return tensors, write


def same(a, b, leaves):
    a, b = leaves(a), leaves(b)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_published_config_is_read():
    config = parse(MINILM)
    want = bert(vocab_size=30522, embed=384, depth=6, heads=12, mlp=1536)
    assert dataclasses.replace(config, extra=()) == want
    layer = config.layers[0]
    assert (layer.norms, layer.mlp.activation, layer.mlp.gated) == ("post", "gelu", False)
    assert (config.norm.kind, config.norm.eps) == ("layer", 1e-12)
    assert (config.token_types, config.pooler) == (2, TokenPool(width=384))
    assert dict(config.extra)["hidden_dropout_prob"] == "0.1"


def test_what_a_config_leaves_out_has_transformers_defaults():
    needed = ("model_type", "vocab_size", "hidden_size", "intermediate_size")
    needed += ("num_hidden_layers", "num_attention_heads")
    config = parse({name: MINILM[name] for name in needed})
    assert config == dataclasses.replace(parse(MINILM), extra=())


def test_the_old_name_of_the_tanh_gelu_is_read():
    config = parse(MINILM | {"hidden_act": "gelu_new"})
    assert config.layers[0].mlp.activation == "gelu_tanh"
    assert describe(config)["hidden_act"] == "gelu_pytorch_tanh"


@pytest.mark.parametrize(
    "key",
    [
        {"hidden_act": "quick_gelu"},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"architectures": ["BertForSequenceClassification"]},
    ],
)
def test_what_no_module_computes_is_refused(key):
    with pytest.raises(ValueError, match="must be one of") as error:
        parse(MINILM | key)
    (value,) = key.values()
    assert f"={value!r}" in str(error.value)
    assert "use the library that wrote" in str(error.value)


def test_the_epsilon_is_that_of_small_numbers(model):
    # Embeddings of order 1e-5 have a variance of 1e-10: an epsilon of 1e-6 would leave nothing.
    small = model.configure()
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 4, 12)), jnp.float32) * 1e-5
    wide = np.asarray(x, np.float64)
    want = wide - wide.mean(-1, keepdims=True)
    want /= np.sqrt((want**2).mean(-1, keepdims=True) + 1e-12)
    norm = small.embed_norm
    want = want * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
    np.testing.assert_allclose(norm(x), want, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("old", [False, True])
def test_names_with_a_prefix_and_old_names_are_read(model, stored, leaves, prefix, old, caplog):
    tensors, write = stored
    if old:
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, before in names.items():
            tensors = {name.replace(new, before): t for name, t in tensors.items()}
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    tensors[prefix + "embeddings.position_ids"] = np.arange(17)[None]
    tensors["cls.predictions.bias"] = np.zeros(31, np.float32)
    with caplog.at_level(logging.WARNING):
        found = load_encoder(write(tensors))
    assert same(found, model, leaves)
    assert caplog.messages == ["Left out, since no module here computes it: cls.predictions.bias"]


@pytest.mark.thorough
def test_files_without_a_pooler_make_a_model_without(stored, leaves, tmp_path):
    tensors, write = stored
    rest = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    found = load_encoder(write(rest))
    assert found.config == dataclasses.replace(CONFIG, pooler=None)
    # config.json then says so, and a file that lacks only a part of the pooler is refused.
    save(found, tmp_path / "again")
    assert same(load_encoder(tmp_path / "again"), found, leaves)
    half = {**rest, "pooler.dense.weight": tensors["pooler.dense.weight"]}
    with pytest.raises(ValueError, match=r"missing pooler\.dense\.bias"):
        load_encoder(write(half))
