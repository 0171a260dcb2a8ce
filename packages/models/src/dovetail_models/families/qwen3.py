# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 3, dense: Llama's block with each head of q and k normalised before RoPE (2505.09388).

Quirks: The width of a head is independent of the other sizes (128 without a key in config.json).
Windows are given as in Qwen 2.
"""

from dovetail_models.config.decoder import Config
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.families.qwen2 import with_windows, write_windows
from dovetail_models.tables.table import Family


@shape.builder
def qwen3(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int = 128,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = False,
    attention_bias: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a dense Qwen 3 with `depth` equal layers.

    Args:
        head_dim: Width of a head; even.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`, or
            `head_dim` is odd.

    Example:

        >>> config = qwen3(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.layers[0].attention.head_dim, config.layers[0].attention.qk_norm
        (128, True)
    """
    return shape.Shape(family="qwen3", qk_norm=True, **locals()).config()


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=qwen3,
        fixed=shape.architectures("Qwen3") | shape.SILU,
        expected={"use_qk_norm": (True,)},
        absent={"max_length": 32_768, "head_dim": 128},
        then=with_windows,
        also=write_windows,
    ),
    table=(*shape.TABLE, *shape.QK_NORMS),
    inert=frozenset({"sliding_window"}),
    tied=shape.TIED,
)
