# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mistral: Llama's block with a sliding window in every layer (2310.06825).

Quirks: Without a key in config.json the window is 4096 positions. From version 0.2 on it is null.
"""

from dovetail_models.config.decoder import Config
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.tables.table import Family


@shape.builder
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
        window: Number of positions a query sees, itself included. None: all. Mistral 7B v0.1 has
            4096.
        rope_theta: Base of the RoPE frequencies. Mistral 7B v0.1 has 10_000.0.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, or it is None and `heads` does not divide `embed`.

    Example:

        >>> config = mistral(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, window=8)
        >>> [layer.attention.window for layer in config.layers]
        [8, 8]
    """
    return shape.Shape(family="mistral", **locals()).config()


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=mistral,
        fixed=shape.architectures("Mistral") | shape.SILU,
        absent={"max_length": 131_072, "window": 4096},
        # transformers opens such a model as a Ministral, which differs in nothing else.
        then=shape.with_kinds,
    ),
    table=shape.TABLE,
    tied=shape.TIED,
)
