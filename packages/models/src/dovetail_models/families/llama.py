# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Llama: pre-norm blocks of grouped-query attention with RoPE, and SwiGLU (2407.21783).

Quirks: Llama 2 has kv_heads == heads. Llama 3.1 scales RoPE by wavelength (`Llama3Scaling`).
"""

from dovetail_models.config.decoder import Config
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.tables.table import Family


@shape.builder
def llama(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    rope_theta: float = 10_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    max_length: int = 2048,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Llama with `depth` equal layers.

    Args:
        rope_theta: Base of the RoPE frequencies. Llama 3 has 500_000.0.
        norm_eps: Epsilon of the norms. Llama 3 has 1e-5.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, or it is None and `heads` does not divide `embed`.

    Example:

        >>> config = llama(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.layers[0].attention.head_dim
        4
    """
    return shape.Shape(family="llama", **locals()).config()


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=llama,
        fixed=shape.architectures("Llama", ["LlamaModel"], ["LLaMAForCausalLM"]) | shape.SILU,
        absent={"max_length": 2048, "kv_heads": None},
    ),
    table=shape.TABLE,
    tied=shape.TIED,
)
