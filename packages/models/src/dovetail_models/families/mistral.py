# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mistral: Llama's block with every layer seeing a sliding window (2310.06825).

Quirks: the window is 4096 positions where config.json does not say, and null from version 0.2 on.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Mlp, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.rope_config import Rope, Scaling


def mistral(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-5,
    tie: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """The configuration of a Mistral of `depth` equal layers.

    `kv_heads` is `heads` unless given, `head_dim` is `embed // heads`. Mistral 7B v0.1 has
    window=4096 and rope_theta=10_000.0.
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
    )
    return Config(
        family="mistral",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, Mlp(hidden=mlp), windows=[window] * depth),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["MistralForCausalLM"])
    keys.expect("hidden_act", "silu")
    window = (
        shape.count(keys, "sliding_window", required=False) if "sliding_window" in keys else 4096
    )
    return mistral(**shape.read_shape(keys, max_length=131_072), window=window)


def _write(config: Config) -> dict[str, Any]:
    hidden = config.layers[0].mlp.hidden
    return {
        **shape.write_shape(config, architecture="MistralForCausalLM", hidden=hidden),
        "hidden_act": "silu",
        "sliding_window": shape.first_window(config),
    }


FAMILY = Family(read=_read, write=_write, table=shape.TABLE, inert=shape.INERT, tied=shape.TIED)
