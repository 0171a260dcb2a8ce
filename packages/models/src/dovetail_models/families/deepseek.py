# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common code of DeepSeek-V2 and V3: latent attention, small routed experts and a shared block."""

import dataclasses
from typing import Any

from dovetail_models.config import Config, LatentAttention, Layer
from dovetail_models.families import shape
from dovetail_models.hf.rope import read_rope, write_rope
from dovetail_models.hf.table import Keys, Table
from dovetail_models.layer_config import Experts, Mlp

_THEIRS, _OURS = "model.layers.{i}.", "layers.{i}."
_NAMES = {name: f"{name}_proj" for name in ("gate", "up", "down")}
_PROJECTIONS = {
    "q_proj": "q",
    "q_a_proj": "q_a",
    "q_b_proj": "q_b",
    "kv_a_proj_with_mqa": "kv_a",
    "kv_b_proj": "kv_b",
    "o_proj": "o",
}
_LATENT: Table = (
    *(
        row
        for theirs, ours in _PROJECTIONS.items()
        for row in shape.linear(f"{_THEIRS}self_attn.{theirs}", f"{_OURS}attn.{ours}")
    ),
    *shape.norm(f"{_THEIRS}self_attn.q_a_layernorm", f"{_OURS}attn.q_norm"),
    *shape.norm(f"{_THEIRS}self_attn.kv_a_layernorm", f"{_OURS}attn.kv_norm"),
)
_SHARED: Table = tuple(
    row
    for ours, theirs in _NAMES.items()
    for row in shape.linear(f"{_THEIRS}mlp.shared_experts.{theirs}", f"{_OURS}mlp.shared.{ours}")
)
_APART, _FUSED = shape.experts(f"{_THEIRS}mlp.gate", _NAMES, stacked=f"{_THEIRS}mlp.experts.{{e}}")
_REST: Table = (*shape.OUTER, *shape.NORMS, *_LATENT, *shape.MLP, *_SHARED)
TABLE, FUSED = (*_REST, *_APART), (*_REST, *_FUSED)
# The layers for it are dropped, or not there.
INERT = frozenset({"num_nextn_predict_layers"})


def layers(
    attention: LatentAttention, experts: Experts, *, depth: int, dense: int, mlp: int
) -> tuple[Layer, ...]:
    """Returns `depth` layers; the first `dense` have one dense feed-forward block.

    Args:
        attention: Attention of every layer.
        experts: Mixture of experts of the other layers.
        depth: Number of layers.
        dense: Number of leading dense layers.
        mlp: Hidden units of a dense block.
    """
    return tuple(
        Layer(attention=attention, mlp=Mlp(hidden=mlp) if i < dense else experts)
        for i in range(depth)
    )


def read_sizes(keys: Keys, *, interleaved: bool, max_length: int, dense: int) -> dict[str, Any]:
    """Reads the builder arguments common to V2 and V3, except the experts, from config.json.

    Args:
        keys: The keys of config.json.
        interleaved: See `Rope`.
        max_length: Default of `max_position_embeddings`.
        dense: Default of `first_k_dense_replace`.

    Returns:
        Arguments of the builder by name.

    Raises:
        ValueError: A key is missing or has a value with no matching module.
    """
    keys.expect("hidden_act", "silu")
    keys.expect("moe_layer_freq", 1)
    keys.expect("mlp_bias", False)
    sizes = shape.read_sizes(keys, max_length=max_length, kv_required=False)
    heads, kv_heads = sizes.pop("heads"), sizes.pop("kv_heads")
    if kv_heads not in (None, heads):
        raise ValueError(
            "Latent attention has as many key heads as heads, got "
            f"num_key_value_heads={kv_heads}, num_attention_heads={heads}. Correct config.json."
        )
    del sizes["head_dim"]
    width = shape.count(keys, "qk_rope_head_dim")
    rope = read_rope(keys, max_length=sizes["max_length"], width=width)
    attention = LatentAttention(
        heads=heads,
        q_rank=shape.count(keys, "q_lora_rank", required=False),
        kv_rank=shape.count(keys, "kv_lora_rank"),
        nope_dim=shape.count(keys, "qk_nope_head_dim"),
        rope_dim=width,
        v_dim=shape.count(keys, "v_head_dim"),
        rope=dataclasses.replace(rope, interleaved=interleaved),
        bias=keys.take("attention_bias", False),
    )
    return {**sizes, "attention": attention, "dense": keys.take("first_k_dense_replace", dense)}


def read_experts(keys: Keys, *, scale: float, **options: Any) -> Experts:
    """Reads the mixture of experts from config.json.

    Args:
        keys: The keys of config.json.
        scale: Default of `routed_scaling_factor`.
        **options: Further arguments of `Experts`; they differ between V2 and V3.

    Raises:
        ValueError: A key is missing or has a wrong value.
    """
    hidden = shape.count(keys, "moe_intermediate_size")
    shared = shape.count(keys, "n_shared_experts", required=False, least=0)
    return Experts(
        count=shape.count(keys, "n_routed_experts"),
        top_k=shape.count(keys, "num_experts_per_tok"),
        hidden=hidden,
        shared=shared * hidden if shared else None,
        scale=keys.take("routed_scaling_factor", scale),
        **options,
    )


def write_sizes(config: Config) -> dict[str, Any]:
    """Returns the config.json keys common to V2 and V3."""
    a = config.layers[0].attention
    blocks = [la.mlp for la in config.layers]
    block = shape.first_experts(config)
    wide = next((b.hidden for b in blocks if isinstance(b, Mlp)), block.hidden)
    assert isinstance(a, LatentAttention)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed,
        "intermediate_size": wide,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.heads,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tie,
        "attention_dropout": 0.0,
        "initializer_range": config.init_std,
        "hidden_act": "silu",
        "attention_bias": a.bias,
        "q_lora_rank": a.q_rank,
        "kv_lora_rank": a.kv_rank,
        "qk_nope_head_dim": a.nope_dim,
        "qk_rope_head_dim": a.rope_dim,
        "head_dim": a.rope_dim,
        "v_head_dim": a.v_dim,
        "first_k_dense_replace": sum(isinstance(b, Mlp) for b in blocks),
        "moe_layer_freq": 1,
        "moe_intermediate_size": block.hidden,
        "n_routed_experts": block.count,
        # transformers refuses null; of no expert it makes empty matrices.
        "n_shared_experts": (block.shared or 0) // block.hidden,
        "num_experts_per_tok": block.top_k,
        "routed_scaling_factor": block.scale,
        **write_rope(a.rope),
    }
