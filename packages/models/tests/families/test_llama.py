# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models import llama
from dovetail_models.hf.config import parse

# As published with Llama 3.2 1B: old keys, both token ids, nothing that transformers 5 adds.
LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}


def test_a_published_config_is_read():
    config = parse(LLAMA_3_2_1B)
    a = config.layers[0].attention
    assert (len(config.layers), config.embed, config.vocab_size) == (16, 2048, 128256)
    assert (a.heads, a.kv_heads, a.head_dim, a.rope.theta) == (32, 8, 64, 5e5)
    assert a.rope.scaling is not None
    assert a.rope.scaling.original_length == 8192
    assert (config.tie, config.norm.eps, config.max_length) == (True, 1e-5, 131072)
    assert dict(config.extra)["eos_token_id"] == "128001"


def test_what_an_old_config_leaves_out_has_transformers_defaults():
    needed = ("model_type", "vocab_size", "hidden_size", "intermediate_size")
    needed += ("num_hidden_layers", "num_attention_heads")
    config = parse({name: LLAMA_3_2_1B[name] for name in needed})
    assert config == llama(vocab_size=128256, embed=2048, depth=16, heads=32, mlp=8192)
    a = config.layers[0].attention
    assert (a.kv_heads, a.head_dim, a.rope.theta, config.norm.eps) == (32, 64, 1e4, 1e-6)


@pytest.mark.parametrize(
    "key",
    [
        {"hidden_act": "gelu"},
        {"attention_dropout": 0.1},
        {"architectures": ["LlamaForSequenceClassification"]},
    ],
)
def test_what_no_module_computes_is_refused(key):
    with pytest.raises(ValueError, match="must be one of"):
        parse(LLAMA_3_2_1B | key)
