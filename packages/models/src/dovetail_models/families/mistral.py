# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mistral: Llama's block with a sliding window in every layer (2310.06825).

Quirks: Without a key in config.json the window is 4096 positions. From version 0.2 on it is null.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Mlp
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
    """Returns the configuration of a Mistral with `depth` equal layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even. None: `embed // heads`.
        window: Number of positions a query sees, itself included. None: all. Mistral 7B v0.1 has
            4096.
        rope_theta: Base of the RoPE frequencies. Mistral 7B v0.1 has 10_000.0.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, or it is None and `heads` does not divide `embed`.

    Example:

        >>> config = mistral(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, window=8)
        >>> [layer.attention.window for layer in config.layers]
        [8, 8]
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
    keys.expect("architectures", ["MistralForCausalLM"], ["MistralModel"])
    keys.expect("hidden_act", "silu")
    window = shape.read_window(keys, default=4096)
    config = mistral(**shape.read_shape(keys, max_length=131_072), window=window)
    # transformers opens such a model as a Ministral, which differs in nothing else.
    return shape.with_kinds(keys, config, window=window)


def _write(config: Config) -> dict[str, Any]:
    hidden = config.layers[0].mlp.hidden
    return {
        **shape.write_shape(config, architecture="MistralForCausalLM", hidden=hidden),
        "hidden_act": "silu",
        "sliding_window": shape.first_window(config),
    }


FAMILY = Family(read=_read, write=_write, table=shape.TABLE, tied=shape.TIED)
