# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 2 and 2.5: Llama's block with biases on q, k and v only (2407.10671).

Quirks: The output projection has no bias. `sliding_window` counts only with `use_sliding_window`.
It then applies to the layers from `max_window_layers` on, or to those named in `layer_types`.
Without keys in config.json the window has 4096 positions and begins at layer 28.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Mlp
from dovetail_models.rope_config import Rope, Scaling


def qwen2(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Qwen 2 or 2.5 with `depth` equal layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even. None: `embed // heads`.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, or it is None and `heads` does not divide `embed`.

    Example:

        >>> config = qwen2(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> attention = config.layers[0].attention
        >>> attention.qkv_bias, attention.out_bias
        (True, False)
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        qkv_bias=True,
    )
    return Config(
        family="qwen2",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, Mlp(hidden=mlp), windows=[None] * depth),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def with_windows(keys: Keys, config: Config) -> Config:
    """Returns `config` with the windows given by Qwen's keys."""
    depth = len(config.layers)
    # Without use_sliding_window the other two keys have no effect and are kept as extra keys.
    window, full = None, depth
    if keys.take("use_sliding_window", False):
        window = shape.read_window(keys, default=4096)
        # Any whole number: a model may have windows from its first layer on.
        full = keys.take("max_window_layers", 28)
    kinds = [shape.FULL if window is None or i < full else shape.SLIDING for i in range(depth)]
    windows = shape.read_windows(keys, depth, window=window, default=kinds)
    return shape.with_windows(config, windows)


def write_windows(config: Config) -> dict[str, Any]:
    """Returns the config.json keys for the windows of the layers."""
    window, kinds = shape.first_window(config), shape.kinds(config)
    keys: dict[str, Any] = {"use_sliding_window": window is not None, "layer_types": kinds}
    if window is not None:
        keys |= {"sliding_window": window, "max_window_layers": kinds.index(shape.SLIDING)}
    return keys


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["Qwen2ForCausalLM"], ["Qwen2Model"])
    # q, k and v have biases, whatever this says.
    keys.take("attention_bias")
    keys.expect("hidden_act", "silu")
    return with_windows(keys, qwen2(**shape.read_shape(keys, max_length=32_768)))


def _write(config: Config) -> dict[str, Any]:
    hidden = config.layers[0].mlp.hidden
    return {
        **shape.write_shape(config, architecture="Qwen2ForCausalLM", hidden=hidden),
        "hidden_act": "silu",
        **write_windows(config),
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=shape.TABLE,
    inert=frozenset({"sliding_window"}),
    tied=shape.TIED,
)
