# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Llama: pre-norm blocks of grouped-query attention with RoPE, and SwiGLU (2407.21783).

Quirks: Llama 2 has kv_heads == heads. Llama 3.1 scales RoPE by wavelength (`Llama3Scaling`).
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Mlp
from dovetail_models.rope_config import Rope, Scaling


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
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even. None: `embed // heads`.
        rope_theta: Base of the RoPE frequencies. Llama 3 has 500_000.0.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms. Llama 3 has 1e-5.
        tie: Share the embedding with the output head.
        attention_bias: Add biases to the q, k, v and output projections.
        mlp_bias: Add biases to the projections of the feed-forward block.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, or it is None and `heads` does not divide `embed`.

    Example:

        >>> config = llama(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.layers[0].attention.head_dim
        4
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
    )
    return Config(
        family="llama",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, Mlp(hidden=mlp, bias=mlp_bias), windows=[None] * depth),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["LlamaForCausalLM"], ["LlamaModel"], ["LLaMAForCausalLM"])
    keys.expect("hidden_act", "silu")
    config = llama(
        **shape.read_shape(keys, max_length=2048, kv_required=False),
        attention_bias=keys.take("attention_bias", False),
        mlp_bias=keys.take("mlp_bias", False),
    )
    return shape.all_full(keys, config)


def _write(config: Config) -> dict[str, Any]:
    layer = config.layers[0]
    assert isinstance(layer.attention, Attention)
    return {
        **shape.write_shape(config, architecture="LlamaForCausalLM", hidden=layer.mlp.hidden),
        "hidden_act": "silu",
        "attention_bias": layer.attention.qkv_bias,
        "mlp_bias": layer.mlp.bias,
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=shape.TABLE,
    tied=shape.TIED,
)
