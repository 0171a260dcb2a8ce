# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma: Llama's block with GeGLU and wide heads (2403.08295).

Quirks: Norms store their scale minus 1 and multiply in float32. Token vectors are multiplied by √D,
rounded to their dtype (55.5 for D = 3072 in bfloat16). The GELU is the tanh approximation, even if
config.json says "gelu". The output head is the embedding.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Mlp
from dovetail_models.rope_config import Rope, Scaling

GELU = "gelu_pytorch_tanh"


def gemma(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int = 256,
    rope_theta: float = 10_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = True,
    max_length: int = 8192,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Gemma with `depth` equal layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`, or
            `head_dim` is odd.

    Example:

        >>> config = gemma(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, head_dim=8)
        >>> config.embed_scale
        4.0
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
    )
    block = Mlp(hidden=mlp, activation="gelu_tanh")
    return Config(
        family="gemma",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, block, windows=[None] * depth),
        norm=norm(norm_eps),
        tie=tie,
        max_length=max_length,
        embed_scale=embed**0.5,
        init_std=init_std,
    )


def norm(eps: float) -> Norm:
    """Returns Gemma's norm: scale stored minus 1, product in float32."""
    return Norm(eps=eps, unit_offset=True, wide=True)


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["GemmaForCausalLM"], ["GemmaModel"])
    keys.expect("hidden_act", GELU, "gelu")
    keys.expect("hidden_activation", GELU)
    keys.expect("attention_bias", False)
    keys.expect("use_bidirectional_attention", False)
    config = gemma(**shape.read_shape(keys, tie=True, max_length=8192, head_dim=256))
    return shape.all_full(keys, config)


def _write(config: Config) -> dict[str, Any]:
    hidden = config.layers[0].mlp.hidden
    return {
        **shape.write_shape(config, architecture="GemmaForCausalLM", hidden=hidden),
        "hidden_act": GELU,
        "attention_bias": False,
        "use_bidirectional_attention": None,
    }


FAMILY = Family(read=_read, write=_write, table=shape.TABLE, tied=shape.TIED)
