# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The families as transformers has them, tiny and random, and the table of what was measured.

With PARITY_TABLE=FILE in the environment, what `record` was given is written there as Markdown.
"""

import os
from pathlib import Path

import numpy as np
import pytest

SIZES = {
    "vocab_size": 71,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
LENGTH = 43  # beyond every window and every original context below
PLAIN = {"rope_type": "default", "rope_theta": 30_000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 30_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    # A ramp between the few pairs of these heads.
    "beta_fast": 2.0,
    "beta_slow": 0.1,
}
TWO_THETAS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
}
DEEPSEEK = {
    "num_key_value_heads": 6,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.9},
}
GEMMA2 = {
    "num_key_value_heads": 2,
    "head_dim": 10,
    "sliding_window": 5,
    "query_pre_attn_scalar": 14,
}
GPT2 = {"vocab_size": 71, "n_embd": 24, "n_head": 6, "n_layer": 3, "n_positions": 64}
# name: (configuration class, model class, options beside SIZES)
CASES = {
    "llama-mha": ("Llama", "LlamaForCausalLM", {"rope_parameters": PLAIN}),
    "llama-gqa-tied": (
        "Llama",
        "LlamaForCausalLM",
        {"num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "llama-3.1": (
        "Llama",
        "LlamaForCausalLM",
        {"num_key_value_heads": 1, "rope_parameters": LLAMA3},
    ),
    "llama-biased": (
        "Llama",
        "LlamaForCausalLM",
        {"num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
    ),
    "mistral": (
        "Mistral",
        "MistralForCausalLM",
        {"num_key_value_heads": 2, "sliding_window": 7},
    ),
    "qwen2": (
        "Qwen2",
        "Qwen2ForCausalLM",
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    "qwen2-yarn": (
        "Qwen2",
        "Qwen2ForCausalLM",
        {"num_attention_heads": 3, "num_key_value_heads": 1, "rope_parameters": YARN},
    ),
    "qwen3": (
        "Qwen3",
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 14, "rope_parameters": PLAIN},
    ),
    "qwen3-tied-biased": (
        "Qwen3",
        "Qwen3ForCausalLM",
        {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}
        | {"num_key_value_heads": 6},
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        "Qwen3MoeForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 8, "num_experts": 5, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 8, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "gemma": ("Gemma", "GemmaForCausalLM", {"num_key_value_heads": 2, "head_dim": 10}),
    "gemma2": (
        "Gemma2",
        "Gemma2ForCausalLM",
        # Caps that bite on random weights.
        {**GEMMA2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3Text",
        "Gemma3ForCausalLM",
        {**GEMMA2, "sliding_window_pattern": 3, "rope_parameters": TWO_THETAS},
    ),
    "mixtral": (
        "Mixtral",
        "MixtralForCausalLM",
        {"num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2}
        | {"sliding_window": 6},
    ),
    "gpt-oss": (
        "GptOss",
        "GptOssForCausalLM",
        # A limit that random weights exceed.
        {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 2}
        | {
            "sliding_window": 6,
            "swiglu_limit": 1.0,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "gpt2": ("GPT2", "GPT2LMHeadModel", {**GPT2, "n_inner": 50}),
    "gpt2-untied": ("GPT2", "GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "deepseek-v2-lite": (
        "DeepseekV2",
        "DeepseekV2ForCausalLM",
        {**DEEPSEEK, "q_lora_rank": None, "n_shared_experts": 1},
    ),
    "deepseek-v2": (
        "DeepseekV2",
        "DeepseekV2ForCausalLM",
        {**DEEPSEEK, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7},
    ),
    "deepseek-v3": ("DeepseekV3", "DeepseekV3ForCausalLM", DEEPSEEK),
}
_rows: list[dict[str, object]] = []


def build(name):
    """A transformers model of a case with random weights, norms, biases and buffers included."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, model, options = CASES[name]
    sizes = {} if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options})
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    theirs = getattr(transformers, model)(config).eval()
    buffers = [(n, b) for n, b in theirs.named_buffers() if n.endswith("e_score_correction_bias")]
    # Gemma stores the scale of a norm less 1.
    centre = 0.0 if kind.startswith("Gemma") else 1.0
    with torch.no_grad():
        for leaf, value in [*theirs.named_parameters(), *buffers]:
            scale = leaf.endswith("weight") and ("norm" in leaf or "ln_" in leaf)
            value.copy_(torch.randn(value.shape) * 0.3 + (centre if scale else 0.0))
    return theirs


@pytest.fixture(scope="session")
def built():
    """A function that gives the case of a name, made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = build(name)
        return made[name]

    return get


@pytest.fixture(scope="session")
def saved(built, tmp_path_factory):
    """A function that gives the directory that transformers saved a case in."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "theirs"
            built(name).save_pretrained(made[name], max_shard_size="20KB")
        return made[name]

    return get


@pytest.fixture(scope="session")
def tokens():
    # Without token 0: torch gives Gemma's row of padding no gradient.
    return np.random.default_rng(0).integers(1, SIZES["vocab_size"], (2, LENGTH), np.int32)


@pytest.fixture(scope="session")
def record():
    """A function that puts a row in the table of what was measured: `record(family=..., ...)`."""
    return lambda **row: _rows.append(row)


def pytest_sessionfinish(session):
    path = os.environ.get("PARITY_TABLE")
    if path and _rows:
        Path(path).write_text(_table(), "utf-8")


def _table() -> str:
    """What `record` was given, a row for each case or quirk, as Markdown."""
    parts = [
        "# Parity with transformers\n",
        "Written by `nox -s parity`; errors are relative to the",
    ]
    parts[-1] += " largest value, float32 on a CPU, tiny random configurations.\n"
    kinds = dict.fromkeys(tuple(row) for row in _rows)
    for columns in kinds:
        parts.append("| " + " | ".join(name.replace("_", " ") for name in columns) + " |")
        parts.append("|" + " --- |" * len(columns))
        lines = {_line(row) for row in _rows if tuple(row) == columns}
        parts += [*sorted(lines), ""]
    return "\n".join(parts)


def _line(row) -> str:
    cells = [f"{v:.1e}" if isinstance(v, float) else str(v) for v in row.values()]
    return "| " + " | ".join(cells) + " |"
