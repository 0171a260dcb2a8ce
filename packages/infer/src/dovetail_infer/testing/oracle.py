# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`TinyDecoder` in NumPy float64, one query, head and expert at a time. It shares no code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from dovetail_infer.testing.decoder import TinyDecoder, TinyLayer


def whole_logits(
    model: TinyDecoder, ids: Sequence[int] | Int[np.ndarray, " T"]
) -> Float64[np.ndarray, "T V"]:
    """Returns the logits after each token of a sequence.

    Example:

        >>> from flax import nnx
        >>> from dovetail_infer.testing import TinyDecoder, whole_logits
        >>> whole_logits(TinyDecoder(rngs=nnx.Rngs(0)), [72, 105]).shape
        (2, 258)
    """
    x = _double(model.embedding)[np.asarray(ids)]
    for layer in model.layers:
        x = x + _attention(layer, _normed(x, layer.attention_norm))
        x = x + np.stack([_mlp(layer, row) for row in _normed(x, layer.mlp_norm)])
    return _normed(x, model.norm) @ _double(model.output)


def _double(parameter: Any) -> np.ndarray:
    return np.asarray(parameter[...]).astype(np.float64)


def _normed(x: np.ndarray, scale: Any) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * _double(scale)


def _attention(layer: TinyLayer, x: np.ndarray) -> np.ndarray:
    heads, kv_heads, width, value_width = layer.shape
    q = (x @ _double(layer.q)).reshape(len(x), heads, width)
    k = (x @ _double(layer.k)).reshape(len(x), kv_heads, width)
    q, k = _complex_rotation(q), _complex_rotation(k)
    v = k if layer.v is None else (x @ _double(layer.v)).reshape(len(x), kv_heads, width)
    out = np.zeros((len(x), heads, value_width))
    for t in range(len(x)):
        first = 0 if layer.window is None else max(0, t + 1 - layer.window)
        for n in range(heads):
            shared = n * kv_heads // heads
            logits = k[first : t + 1, shared] @ q[t, n] / np.sqrt(width)
            if layer.soft_cap is not None:
                logits = layer.soft_cap * np.tanh(logits / layer.soft_cap)
            weights = np.exp(logits)
            sink = 0.0 if layer.sinks is None else np.exp(_double(layer.sinks)[n])
            values = v[first : t + 1, shared, :value_width]
            out[t, n] = weights @ values / (weights.sum() + sink)
    return out.reshape(len(x), -1) @ _double(layer.o)


def _complex_rotation(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(len(x)), 1e4 ** (-np.arange(half) / half))[:, None]
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _mlp(layer: TinyLayer, x: np.ndarray) -> np.ndarray:
    gate, up, down = (_double(p) for p in (layer.gate, layer.up, layer.down))
    if layer.router is None:
        return _swiglu(x, gate, up, down)
    shares = np.exp(x @ _double(layer.router))
    shares = shares / shares.sum()
    expert_ids = np.argsort(-shares)[:2]
    outputs = [shares[e] * _swiglu(x, gate[e], up[e], down[e]) for e in expert_ids]
    return np.sum(outputs, axis=0)


def _swiglu(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    hidden = x @ gate
    return (hidden / (1 + np.exp(-hidden)) * (x @ up)) @ down
