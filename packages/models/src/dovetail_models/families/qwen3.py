# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 3, dense: Llama's block with each head of q and k normalised before RoPE (2505.09388).

Quirks: The width of a head is independent of the other sizes (128 without a key in config.json).
Windows are given as in Qwen 2.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.families.qwen2 import with_windows, write_windows
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Mlp
from dovetail_models.rope_config import Rope, Scaling


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
        attention_bias: Add biases to the q, k, v and output projections.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`, or
            `head_dim` is odd.

    Example:

        >>> config = qwen3(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.layers[0].attention.head_dim, config.layers[0].attention.qk_norm
        (128, True)
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=True,
    )
    return Config(
        family="qwen3",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, Mlp(hidden=mlp), windows=[None] * depth),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["Qwen3ForCausalLM"], ["Qwen3Model"])
    keys.expect("use_qk_norm", True)
    keys.expect("hidden_act", "silu")
    sizes = shape.read_shape(keys, max_length=32_768, head_dim=128)
    return with_windows(keys, qwen3(**sizes, attention_bias=keys.take("attention_bias", False)))


def _write(config: Config) -> dict[str, Any]:
    layer = config.layers[0]
    assert isinstance(layer.attention, Attention)
    return {
        **shape.write_shape(config, architecture="Qwen3ForCausalLM", hidden=layer.mlp.hidden),
        "hidden_act": "silu",
        "attention_bias": layer.attention.qkv_bias,
        **write_windows(config),
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=(*shape.TABLE, *shape.QK_NORMS),
    inert=frozenset({"sliding_window"}),
    tied=shape.TIED,
)
