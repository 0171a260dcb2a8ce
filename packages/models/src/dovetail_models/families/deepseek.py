# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common code of DeepSeek-V2 and V3: latent attention, small routed experts and a shared block."""

import dataclasses
import functools
from typing import Any

from dovetail_models.config.decoder import Config, LatentAttention, Layer, Norm
from dovetail_models.config.layer import Experts, Mlp
from dovetail_models.families import shape
from dovetail_models.tables.config_json import (
    ANY,
    ConfigJson,
    Key,
    Keys,
    Values,
    count,
    read_keys,
    write_keys,
)
from dovetail_models.tables.rope import read_rope, write_rope
from dovetail_models.tables.table import Table, experts, in_layers, norm

_PROJECTIONS = {
    "q_proj": "q",
    "q_a_proj": "q_a",
    "q_b_proj": "q_b",
    "kv_a_proj_with_mqa": "kv_a",
    "kv_b_proj": "kv_b",
    "o_proj": "o",
}
_NORMS = {"self_attn.q_a_layernorm": "attn.q_norm", "self_attn.kv_a_layernorm": "attn.kv_norm"}
_LATENT: Table = (
    *in_layers({f"self_attn.{a}": f"attn.{b}" for a, b in _PROJECTIONS.items()}),
    *in_layers(_NORMS, row=norm),
)
_SHARED = in_layers(
    {f"mlp.shared_experts.{a}": f"mlp.shared.{b}" for b, a in shape.PROJECTIONS.items()}
)
_MLP = "model.layers.{i}.mlp"
_APART, _FUSED = experts(f"{_MLP}.gate", shape.PROJECTIONS, stacked=f"{_MLP}.experts.{{e}}")
_REST: Table = (*shape.OUTER, *shape.NORMS, *_LATENT, *shape.MLP, *_SHARED)
TABLE, FUSED = (*_REST, *_APART), (*_REST, *_FUSED)
# The layers for it are dropped, or not there.
INERT = frozenset({"num_nextn_predict_layers"})
# Fields of `LatentAttention` and of `Experts`.
_ATTENTION_KEYS = (
    Key("qk_rope_head_dim", "rope_dim"),
    Key("q_lora_rank", "q_rank", None),
    Key("kv_lora_rank", "kv_rank"),
    Key("qk_nope_head_dim", "nope_dim"),
    Key("v_head_dim", "v_dim"),
    Key("attention_bias", "bias", False, ANY),
)
_EXPERT_KEYS = (
    Key("moe_intermediate_size", "hidden"),
    Key("n_routed_experts", "count"),
    Key("num_experts_per_tok", "top_k"),
    Key("routed_scaling_factor", "scale", reads=ANY),
)


def config(
    family: str,
    *,
    attention: LatentAttention,
    experts: Experts,
    depth: int,
    dense: int,
    mlp: int,
    norm_eps: float,
    **sizes: Any,
) -> Config:
    """Returns the configuration of a DeepSeek.

    Args:
        family: Name of the family.
        attention: Attention of every layer.
        experts: Mixture of experts of the other layers.
        depth: Number of layers.
        dense: Number of leading layers with one dense feed-forward block.
        mlp: Hidden units of a dense block.
        norm_eps: Epsilon of the norms.
        **sizes: Further fields of `Config`.

    Raises:
        ValueError: A size or rate is not positive.
    """
    block = Mlp(hidden=mlp)
    layers = (Layer(attention=attention, mlp=block if i < dense else experts) for i in range(depth))
    return Config(family=family, layers=tuple(layers), norm=Norm(eps=norm_eps), **sizes)


def read_attention(keys: Keys, values: Values, *, interleaved: bool) -> LatentAttention:
    """Reads latent attention from config.json.

    Args:
        keys: The keys of config.json.
        values: The arguments that are already read.
        interleaved: See `Rope`.

    Raises:
        ValueError: A key is missing or has a value with no matching module.
    """
    heads = count(keys, "num_attention_heads")
    kv_heads = count(keys, "num_key_value_heads", required=False)
    if kv_heads not in (None, heads):
        raise ValueError(
            "Latent attention has as many key heads as heads, got "
            f"num_key_value_heads={kv_heads}, num_attention_heads={heads}. Correct config.json."
        )
    count(keys, "head_dim", required=False)  # transformers has that of RoPE
    fields = read_keys(keys, _ATTENTION_KEYS, {})
    rope = read_rope(keys, max_length=values["max_length"], width=fields["rope_dim"])
    rope = dataclasses.replace(rope, interleaved=interleaved)
    return LatentAttention(heads=heads, rope=rope, **fields)


def read_experts(keys: Keys, *, scale: float, **options: Any) -> Experts:
    """Reads the mixture of experts from config.json.

    Args:
        keys: The keys of config.json.
        scale: Default of `routed_scaling_factor`.
        **options: Further arguments of `Experts`; they differ between V2 and V3.

    Raises:
        ValueError: A key is missing or has a wrong value.
    """
    fields = read_keys(keys, _EXPERT_KEYS, {"scale": scale})
    shared = count(keys, "n_shared_experts", required=False, least=0)
    return Experts(shared=shared * fields["hidden"] if shared else None, **fields, **options)


def write(config: Config) -> dict[str, Any]:
    """Returns the config.json keys of attention and experts."""
    a, block = config.layers[0].attention, shape.first_experts(config)
    assert isinstance(a, LatentAttention)
    return {
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.heads,
        "head_dim": a.rope_dim,
        **write_keys(_ATTENTION_KEYS, vars(a)),
        **write_keys(_EXPERT_KEYS, vars(block)),
        # transformers refuses null; of no expert it makes empty matrices.
        "n_shared_experts": (block.shared or 0) // block.hidden,
        **write_rope(a.rope),
    }


def _arguments(config: Config) -> dict[str, Any]:
    values = shape.arguments(config)
    dense = sum(isinstance(la.mlp, Mlp) for la in config.layers)
    return {**values, "mlp": values["dense_mlp"], "dense": dense}


config_json = functools.partial(
    ConfigJson,
    keys=shape.KEYS,
    own=(Key("first_k_dense_replace", "dense", reads=ANY),),
    unread=("experts",),
    arguments=_arguments,
)
