# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of RoPE that a config.json can name, in the old keys and in the new ones: frequencies
and logits of transformers, also beyond the original context."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

from dovetail_models import load  # noqa: E402
from dovetail_models.hf.config import parse  # noqa: E402
from dovetail_models.layers.rope import rope_angles  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.capability("RoPE scalings of transformers"),
]
# Heads of 8 numbers, 4 pairs.
SHORT, LONG = [1.0, 1.25, 1.5, 2.0], [1.5, 3.0, 6.5, 11.0]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 16}
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
# name: (numbers of the scaling, keys beside it)
CASES = {
    "linear": ({"type": "linear", "factor": 3.0}, {}),
    "linear-new-name": ({"rope_type": "linear", "factor": 3.0}, {"rope_theta": 500.0}),
    "dynamic": ({"type": "dynamic", "factor": 2.5}, {}),
    "dynamic-original-unread": ({"rope_type": "dynamic", "factor": 4.0, **ORIGINAL}, {}),
    "llama3": ({"rope_type": "llama3", **LLAMA3, **ORIGINAL}, {}),
    "llama3-original-outside": ({"rope_type": "llama3", **LLAMA3}, ORIGINAL),
    "yarn": ({"type": "yarn", "factor": 4.0, **ORIGINAL}, {}),
    "yarn-without-original": ({"type": "yarn", "factor": 4.0}, {"rope_theta": 50.0}),
    "yarn-original-outside-wins": (
        {"rope_type": "yarn", "factor": 4.0, **ORIGINAL, "beta_fast": 2.0, "beta_slow": 0.1},
        {"original_max_position_embeddings": 24},
    ),
    "yarn-null-factor": ({"rope_type": "yarn", "factor": None, **ORIGINAL}, {}),
    "yarn-finetuned": ({"type": "yarn", "factor": 4.0, **ORIGINAL, "finetuned": True}, {}),
    "yarn-attention-factor": (
        {"rope_type": "yarn", "factor": 4.0, **ORIGINAL, "attention_factor": 1.3},
        {},
    ),
    "yarn-inverted-ramp": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3},
        {"rope_theta": 1.7},
    ),
    "yarn-all-slowed": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 60_000},
        {"rope_theta": 1.7},
    ),
    "longrope": ({**LONGROPE, **ORIGINAL}, {}),
    "longrope-factor": ({**LONGROPE, **ORIGINAL, "factor": 6.0}, {}),
    "longrope-small-factor": ({**LONGROPE, **ORIGINAL, "factor": 0.5}, {}),
    "longrope-attention-factor": ({**LONGROPE, **ORIGINAL, "attention_factor": 1.4}, {}),
    "longrope-original-outside": (LONGROPE, ORIGINAL),
    "longrope-without-original": (LONGROPE, {}),
    "partial-unread": (None, {"partial_rotary_factor": 0.5}),
    "partial-whole": (
        {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
        {"partial_rotary_factor": 1.0},
    ),
}
SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
LENGTHS = 11, 16, 17, 32, 33, 50  # on both sides of the original length, and of the largest


def written(name, *, new):
    """The keys of config.json, in the form of transformers 5 or in that of earlier ones."""
    scaling, beside = CASES[name]
    beside = {"rope_theta": 1e4, **beside}
    if not new:
        return {**SIZES, **beside, "rope_scaling": scaling}
    theta = beside.pop("rope_theta")
    scaling = dict(scaling or {"rope_type": "default"})
    scaling["rope_type"] = scaling.pop("type", scaling.get("rope_type"))
    return {**SIZES, **beside, "rope_parameters": {**scaling, "rope_theta": theta}}


@pytest.mark.parametrize("new", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("name", CASES)
def test_frequencies_and_factor_are_those_of_transformers(name, new):
    keys = written(name, new=new)
    theirs = transformers.LlamaConfig(**json.loads(json.dumps(keys)))
    rope = parse({"model_type": "llama", **keys}).layers[0].attention.rope
    kind = theirs.rope_parameters["rope_type"]
    for length in LENGTHS:
        if kind == "default":
            rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
            inverse, factor = rotary.compute_default_rope_parameters(theirs)
        else:
            inverse, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu", seq_len=length)
        positions = jnp.arange(length)[None]
        cos, sin = rope_angles(rope, 8, positions=positions)
        phase = np.arange(length)[None, :, None] * np.asarray(inverse, np.float64)
        # A phase of up to 50 in float32, and a factor of at most 2.
        np.testing.assert_allclose(cos, factor * np.cos(phase), rtol=0, atol=2e-5)
        np.testing.assert_allclose(sin, factor * np.sin(phase), rtol=0, atol=2e-5)


def opened(keys, kind, path):
    """A random model of transformers, and ours of the directory that holds these very keys."""
    torch.manual_seed(7)
    given = {**keys, "attn_implementation": "eager"}
    theirs = getattr(transformers, kind.removesuffix("Text") + "ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**json.loads(json.dumps(given)))
    ).eval()
    with torch.no_grad():
        for value in theirs.parameters():
            value.copy_(torch.randn(value.shape) * 0.4)
    theirs.save_pretrained(path)
    again = json.loads((path / "config.json").read_text())
    rest = {name: again[name] for name in ("model_type", "architectures", "tie_word_embeddings")}
    return theirs, {**rest, **keys}


def check(theirs, path, *, tokens):
    model = load(path)
    for length in LENGTHS:
        ids = tokens[:, :length]
        with torch.no_grad():
            want = theirs(torch.from_numpy(ids).long()).logits.numpy()
        with jax.default_matmul_precision("highest"):
            got = np.asarray(model(ids))
        # float32 sums of at most 60 terms in two orders, through two layers, and phases as above.
        assert np.abs(got - want).max() < 2e-5 * np.abs(want).max(), length


@pytest.mark.parametrize("name", CASES)
def test_logits_of_published_keys_are_those_of_transformers(name, tmp_path):
    theirs, keys = opened(written(name, new=False), "Llama", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    tokens = np.random.default_rng(1).integers(0, 61, (2, max(LENGTHS)), np.int32)
    check(theirs, tmp_path, tokens=tokens)


FAMILIES = {
    "Gemma2": {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "Gemma3Text": {"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3": {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "Mistral": {"rope_theta": 1e4, "rope_scaling": {**LONGROPE, **ORIGINAL}, "sliding_window": 9},
    "DeepseekV3": {
        "rope_theta": 1e4,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9},
    }
    | {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 8, "q_lora_rank": 10, "kv_lora_rank": 6, "qk_rope_head_dim": 8}
    | {"qk_nope_head_dim": 6, "v_head_dim": 5, "num_key_value_heads": 3},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_other_families_scale_as_transformers(kind, tmp_path):
    theirs, keys = opened({**SIZES, **FAMILIES[kind]}, kind, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    tokens = np.random.default_rng(2).integers(1, 61, (2, max(LENGTHS)), np.int32)
    check(theirs, tmp_path, tokens=tokens)
