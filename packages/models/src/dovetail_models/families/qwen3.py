# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 3, dense: Llama's block with each head of q and k normalised before RoPE (2505.09388).

The width of a head is a number of its own, and the last layers may see a sliding window.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Config
from dovetail_models.families.llama import INERT, TABLE, TIED, llama, read_shape, write_shape
from dovetail_models.hf.ops import Identity
from dovetail_models.hf.table import Family, Keys, Row

_NORMS = (
    Row("model.layers.{i}.self_attn.q_norm.weight", "layers.{i}.attn.q_norm.scale", Identity()),
    Row("model.layers.{i}.self_attn.k_norm.weight", "layers.{i}.attn.k_norm.scale", Identity()),
)
_FULL, _SLIDING = "full_attention", "sliding_attention"


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
    norm_eps: float = 1e-6,
    tie: bool = False,
    attention_bias: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """The configuration of a dense Qwen 3 of `depth` equal layers; `kv_heads` is `heads`
    unless given.
    """
    base = llama(
        vocab_size=vocab_size,
        embed=embed,
        depth=depth,
        heads=heads,
        mlp=mlp,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=rope_theta,
        norm_eps=norm_eps,
        tie=tie,
        attention_bias=attention_bias,
        max_length=max_length,
        init_std=init_std,
    )
    return _normed(base)


def _normed(base: Config) -> Config:
    layers = tuple(
        dataclasses.replace(la, attention=dataclasses.replace(la.attention, qk_norm=True))
        for la in base.layers
    )
    return dataclasses.replace(base, family="qwen3", layers=layers)


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["Qwen3ForCausalLM"])
    base = llama(
        **read_shape(keys),
        head_dim=keys.take("head_dim", 128),
        max_length=keys.take("max_position_embeddings", 32_768),
    )
    windows = _windows(keys, len(base.layers))
    config = _normed(base)
    layers = tuple(
        dataclasses.replace(la, attention=dataclasses.replace(la.attention, window=window))
        for la, window in zip(config.layers, windows, strict=True)
    )
    return dataclasses.replace(config, layers=layers)


def _windows(keys: Keys, depth: int) -> list[int | None]:
    kinds = keys.take("layer_types")
    # Without use_sliding_window the other two keys alter nothing, and stay as they are.
    window = keys.take("sliding_window") if keys.take("use_sliding_window", False) else None
    if window is not None:
        full = keys.take("max_window_layers", depth)
        kinds = kinds or [_SLIDING if i >= full else _FULL for i in range(depth)]
    kinds = kinds or [_FULL] * depth
    allowed = {_FULL} if window is None else {_FULL, _SLIDING}
    if len(kinds) != depth or not set(kinds) <= allowed:
        raise ValueError(
            f"layer_types must hold one of {sorted(allowed)} per layer, got layer_types={kinds} "
            f"for num_hidden_layers={depth} and sliding_window={window}. Correct config.json."
        )
    return [window if kind == _SLIDING else None for kind in kinds]


def _write(config: Config) -> dict[str, Any]:
    windows = [la.attention.window for la in config.layers]
    sizes = [window for window in windows if window is not None]
    kinds = [_FULL if window is None else _SLIDING for window in windows]
    keys = {
        "architectures": ["Qwen3ForCausalLM"],
        **write_shape(config),
        "use_sliding_window": bool(sizes),
        "layer_types": kinds,
    }
    if sizes:
        keys |= {"sliding_window": sizes[0], "max_window_layers": kinds.index(_SLIDING)}
    return keys


FAMILY = Family(
    read=_read,
    write=_write,
    table=(*TABLE, *_NORMS),
    inert=INERT | {"sliding_window", "max_window_layers"},
    tied=TIED,
)
