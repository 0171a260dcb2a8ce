# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 2 and 2.5: Llama's block with biases on q, k and v only (2407.10671).

Quirks: The output projection has no bias. `sliding_window` counts only with `use_sliding_window`.
It then applies to the layers from `max_window_layers` on, or to those named in `layer_types`.
Without keys in config.json the window has 4096 positions and begins at layer 28.
"""

from typing import Any

from dovetail_models.config.decoder import Config
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.tables.config_json import Keys, Values
from dovetail_models.tables.table import Family


@shape.builder
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

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, or it is None and `heads` does not divide `embed`.

    Example:

        >>> config = qwen2(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> attention = config.layers[0].attention
        >>> attention.qkv_bias, attention.out_bias
        (True, False)
    """
    return shape.Shape(family="qwen2", qkv_bias=True, **locals()).config()


def with_windows(keys: Keys, config: Config, values: Values) -> Config:
    """Returns `config` with the windows given by Qwen's keys.

    Args:
        keys: The keys of config.json.
        config: The configuration without windows.
        values: The arguments of the builder. None of them is a window.

    Raises:
        ValueError: `layer_types` does not fit the layers.
    """
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


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=qwen2,
        fixed=shape.architectures("Qwen2") | shape.SILU,
        absent={"max_length": 32_768},
        # q, k and v have biases, whatever this says.
        ignored=("attention_bias",),
        then=with_windows,
        also=write_windows,
    ),
    table=shape.TABLE,
    inert=frozenset({"sliding_window"}),
    tied=shape.TIED,
)
