# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of published config.json files: those without effect are accepted, others are refused."""

import pytest

from dovetail_models.families import FAMILIES
from dovetail_models.hf.config import parse
from dovetail_models.tables.harmless import HARMLESS, is_harmless

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
# Keys as in published files, apart from the sizes.
PUBLISHED = {
    "smollm": {
        "model_type": "llama",
        "is_llama_config": True,
        "rope_interleaved": False,
        "pretraining_tp": 1,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        "layer_types": ["full_attention", "full_attention"],
    },
    "llama-1": {
        "model_type": "llama",
        "architectures": ["LLaMAForCausalLM"],
        "max_sequence_length": 2048,
        "pad_token_id": -1,
    },
    "yarn-mistral": {
        "model_type": "mistral",
        "auto_map": {"AutoModelForCausalLM": "modeling_mistral_yarn.MistralForCausalLM"},
        "rope_scaling": {"type": "yarn", "factor": 16.0, "finetuned": True}
        | {"original_max_position_embeddings": 8192},
        "use_flash_attention": True,
    },
    "e5-mistral": {"model_type": "mistral", "architectures": ["MistralModel"]},
    "unsloth": {
        "model_type": "qwen2",
        "unsloth_fixed": True,
        "unsloth_version": "2025.6.1",
        "quantization": None,
        "use_mrope": False,
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 28,
        "temperature": 0.6,
        "top_p": 0.95,
        "do_sample": True,
    },
    "qwen3-coder": {
        "model_type": "qwen3_moe",
        "qkv_bias": False,
        "use_qk_norm": True,
        "shared_expert_intermediate_size": 0,
        "mlp_only_layers": [],
        "max_window_layers": 28,
        "use_sliding_window": False,
        **EXPERTS,
    },
    "gemma-2": {
        "model_type": "gemma2",
        "cache_implementation": "hybrid",
        "sliding_window": 8,
        "sliding_window_size": 8,
        "hidden_act": "gelu_pytorch_tanh",
    },
    "bert-multilingual": {
        "model_type": "bert",
        "directionality": "bidi",
        "pooler_type": "first_token_transform",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_published_files_are_accepted(name):
    keys = SIZES | PUBLISHED[name]
    if name.startswith("bert"):
        del keys["num_key_value_heads"]
    config = parse(keys)
    assert config.family == PUBLISHED[name]["model_type"]


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_every_key_of_the_table_is_accepted_by_every_family(family):
    plain = {"model_type": family, "use_cache": True}
    every = {name: values[0] if values else "any" for name, (_, values) in HARMLESS.items()}
    read = {"attention_bias", "mlp_bias", "use_bidirectional_attention", "sliding_window"}
    config = parse(SIZES | plain | {n: v for n, v in every.items() if n not in read})
    assert config.layers == parse(SIZES | plain).layers


@pytest.mark.parametrize(
    "name, value",
    [
        ("qkv_bias", True),
        ("rope_interleaved", 1),
        ("shared_expert_intermediate_size", 512),
        ("quantization", {"bits": 4, "group_size": 64}),
        ("dual_chunk_attention_config", {"chunk_size": 262144}),
        ("pruned_heads", {"0": [1]}),
        ("sliding_window", 4096),
        ("is_encoder_decoder", True),
        ("logit_scale", 0.5),
        ("residual_multiplier", None),
    ],
)
def test_a_value_that_would_alter_the_model_is_refused(name, value):
    keys = SIZES | {"model_type": "llama", name: value}
    with pytest.raises(ValueError, match="since it may alter the model") as error:
        parse(keys)
    assert f"got {name}={value!r}. If these do not, pass allow=({name!r},)." in str(error.value)
    assert parse(keys, allow=(name,)).extra[0][0] == name


def test_every_key_has_a_reason():
    assert all(reason for reason, _ in HARMLESS.values())
    assert is_harmless("quantization", None)
    assert not is_harmless("qkv_bias", 0)
    # A family's own keys are not repeated in the table.
    assert not any(
        family.inert & HARMLESS.keys() - {"sliding_window"} for family in FAMILIES.values()
    )
