# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder in NumPy float64, one token and head at a time, straight from the papers.

It shares no code with the layers; their tests compare with it. Use it to test your own attention,
ragged product or engine. It is slow: use dozens of tokens, not thousands.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from dovetail_models.config.decoder import Attention, Config, LatentAttention, Layer, Norm
from dovetail_models.config.layer import ClampedGlu, Experts
from dovetail_models.config.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)
from dovetail_models.model.decoder import Decoder
from dovetail_models.placing.shard import WEIGHTS

Params = Mapping[str, np.ndarray]


def logits(
    model: Decoder,
    tokens: Int[Any, "B T"],
    *,
    positions: Int[Any, "B T"] | None = None,
    segment_ids: Int[Any, "B T"] | None = None,
) -> Float[np.ndarray, "B T V"]:
    """Computes the logits of `model` in NumPy.

    Args:
        model: The decoder.
        tokens: Token ids [B, T].
        positions: Positions [B, T]. None: the index in the row.
        segment_ids: Segments of packed rows [B, T]. None: one segment.

    Returns:
        float64 logits [B, T, V].

    Example:

        >>> from dovetail_models import init, llama
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=4, mlp=32)
        >>> logits(init(config, seed=0), [[1, 2, 3]]).shape
        (1, 3, 64)
    """
    tokens = np.asarray(tokens)
    index = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    positions = index if positions is None else np.asarray(positions)
    segments = np.ones_like(tokens) if segment_ids is None else np.asarray(segment_ids)
    state = nnx.to_flat_state(nnx.state(model, WEIGHTS))
    params = {".".join(map(str, p)): np.asarray(v[...]).astype(np.float64) for p, v in state}
    rows = zip(tokens, positions, segments, strict=True)
    return np.stack([_row(model.config, params, *row) for row in rows])


def _row(config: Config, params: Params, tokens, positions, segments) -> np.ndarray:
    x = params["embed.embedding"][tokens] * (config.embed_scale or 1.0)
    if config.learned_positions:
        x = x + params["positions.embedding"][positions]
    for i, layer in enumerate(config.layers):
        ours = _under(params, f"layers.{i}")
        x = _block(layer, config.norm, ours, x, positions, segments)
    x = _norm(config.norm, _under(params, "norm"), x)
    out = x @ (params["embed.embedding"].T if config.tie else params["lm_head.kernel"])
    return _capped(out, config.soft_cap)


def _block(layer: Layer, norm: Norm, params: Params, x, positions, segments) -> np.ndarray:
    def normed(name, x):
        return _norm(norm, _under(params, name), x)

    def attend(x):
        a, ours = layer.attention, _under(params, "attn")
        if isinstance(a, LatentAttention):
            return _latent(a, ours, x, positions, segments)
        return _grouped(a, norm, ours, x, positions, segments)

    def feed(x):
        mlp, ours = layer.mlp, _under(params, "mlp")
        return _experts(mlp, ours, x) if isinstance(mlp, Experts) else _mlp(mlp, ours, x)

    if layer.norms == "post":
        x = normed("attn_norm", x + attend(x))
        return normed("mlp_norm", x + feed(x))
    out = attend(normed("attn_norm", x))
    x = x + (normed("attn_post_norm", out) if layer.norms == "sandwich" else out)
    out = feed(normed("mlp_norm", x))
    return x + (normed("mlp_post_norm", out) if layer.norms == "sandwich" else out)


def _grouped(a: Attention, norm: Norm, params: Params, x, positions, segments) -> np.ndarray:
    q, k, v = (_linear(_under(params, n), x).reshape(len(x), -1, a.head_dim) for n in "qkv")
    if a.qk_norm:
        q = _norm(norm, _under(params, "q_norm"), q)
        k = _norm(norm, _under(params, "k_norm"), k)
    if a.rope is not None:
        q, k = (_turned(x, a.rope, positions, segments) for x in (q, k))
    scale = a.head_dim**-0.5 if a.scale is None else a.scale
    shared = np.arange(a.heads) // (a.heads // a.kv_heads)
    sinks = params["sinks"] if a.sinks else np.full(a.heads, -np.inf)
    out = [
        _head(q[:, n], k[:, shared[n]], v[:, shared[n]], positions, segments, scale, a, sinks[n])
        for n in range(a.heads)
    ]
    return _linear(_under(params, "o"), np.concatenate(out, axis=-1))


def _latent(a: LatentAttention, params: Params, x, positions, segments) -> np.ndarray:
    eps = Norm(eps=1e-6)
    if a.q_rank is None:
        q = _linear(_under(params, "q"), x)
    else:
        low = _norm(eps, _under(params, "q_norm"), _linear(_under(params, "q_a"), x))
        q = _linear(_under(params, "q_b"), low)
    q = q.reshape(len(x), a.heads, a.nope_dim + a.rope_dim)
    down = _linear(_under(params, "kv_a"), x)
    latent = _norm(eps, _under(params, "kv_norm"), down[:, : a.kv_rank])
    both = _linear(_under(params, "kv_b"), latent).reshape(len(x), a.heads, -1)
    shared = _turned(down[:, None, a.kv_rank :], a.rope, positions, segments)[:, 0]
    turned = _turned(q[..., a.nope_dim :], a.rope, positions, segments)
    scale = (a.nope_dim + a.rope_dim) ** -0.5
    if isinstance(a.rope.scaling, YarnScaling) and a.rope.scaling.mscale_all_dim:
        scale *= _magnitude(a.rope.scaling, a.rope.scaling.mscale_all_dim) ** 2
    out = []
    for n in range(a.heads):
        query = np.concatenate([q[:, n, : a.nope_dim], turned[:, n]], axis=-1)
        key = np.concatenate([both[:, n, : a.nope_dim], shared], axis=-1)
        value = both[:, n, a.nope_dim :]
        out.append(_head(query, key, value, positions, segments, scale, None, -np.inf))
    return _linear(_under(params, "o"), np.concatenate(out, axis=-1))


def _head(q, k, v, positions, segments, scale, a: Attention | None, sink) -> np.ndarray:
    """One head of attention: for each query, the softmax over the visible keys."""
    out = np.zeros((len(q), v.shape[-1]))
    window = math.inf if a is None or a.window is None else a.window
    for t in range(len(q)):
        ahead = positions[t] - positions
        seen = (segments == segments[t]) & (ahead >= 0) & (ahead < window)
        scores = _capped(scale * (k[seen] @ q[t]), None if a is None else a.soft_cap)
        top = max(scores.max(), sink)
        weights = np.exp(scores - top)
        out[t] = weights / (weights.sum() + np.exp(sink - top)) @ v[seen]
    return out


def _mlp(mlp, params: Params, x) -> np.ndarray:
    up = _linear(_under(params, "up"), x)
    if not mlp.gated:
        return _linear(_under(params, "down"), _activated(mlp.activation, up))
    gate = _linear(_under(params, "gate"), x)
    return _linear(_under(params, "down"), _gated(mlp.activation, gate, up))


def _experts(e: Experts, params: Params, x) -> np.ndarray:
    out = np.zeros_like(x)
    router = _under(params, "router")
    for t, token in enumerate(x):
        for expert, weight in _routed(e, router, token):
            ours = {k: v[expert] for k, v in _under(params, "experts").items()}
            up, gate = (_linear(_under(ours, name), token) for name in ("up", "gate"))
            out[t] += weight * _linear(_under(ours, "down"), _gated(e.activation, gate, up))
    if e.shared is not None:
        shared = _under(params, "shared")
        gate, up = (_linear(_under(shared, name), x) for name in ("gate", "up"))
        out = out + _linear(_under(shared, "down"), _gated("silu", gate, up))
    return out


def _routed(e: Experts, params: Params, token) -> list[tuple[int, float]]:
    """Returns (expert, weight) for each choice of a token."""
    raw = token @ params["kernel"] + params.get("bias", 0.0)
    if e.score == "softmax":
        raw = np.exp(raw - raw.max())
        scores = raw / raw.sum()
    else:
        scores = 1 / (1 + np.exp(-raw))
    selection = scores + params.get("selection_bias", 0.0)
    allowed = range(e.count)
    if e.groups is not None:
        parts = np.split(np.arange(e.count), e.groups.count)
        best = 1 if e.groups.score == "max" else 2
        worth = [np.sort(selection[members])[-best:].sum() for members in parts]
        best_groups = np.argsort(worth)[::-1][: e.groups.top_k]
        allowed = [i for g in best_groups for i in parts[g]]
    selected = sorted(allowed, key=lambda i: selection[i], reverse=True)[: e.top_k]
    total = sum(scores[i] for i in selected) if e.normalise else 1.0
    return [(int(i), float(e.scale * scores[i] / total)) for i in selected]


def _activated(kind: str, x) -> np.ndarray:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "gelu":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gated(kind, gate, up) -> np.ndarray:
    if not isinstance(kind, ClampedGlu):
        return _activated(kind, gate) * up
    gate, up = np.minimum(gate, kind.limit), np.clip(up, -kind.limit, kind.limit)
    return gate / (1 + np.exp(-kind.alpha * gate)) * (up + 1)


def _turned(x, rope: Rope, positions, segments) -> np.ndarray:
    """Rotates each RoPE pair of a head, as one complex number."""
    pairs = x.shape[-1] // 2
    lengths = [int(positions[segments == s].max()) + 1 for s in segments]
    out = np.empty_like(x)
    for i in range(pairs):
        first, second = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + pairs)
        angle = positions * [_frequency(rope, i, pairs, length) for length in lengths]
        turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle)[:, None]
        out[..., first], out[..., second] = turned.real, turned.imag
    return out * _turn_factor(rope)


def _frequency(rope: Rope, i: int, pairs: int, length: int) -> float:
    plain, s = rope.theta ** (-i / pairs), rope.scaling
    if isinstance(s, DynamicScaling) and length > s.original_length:
        growth = s.factor * length / s.original_length - s.factor + 1
        return (rope.theta * growth ** (pairs / (pairs - 1))) ** (-i / pairs)
    if isinstance(s, LongRopeScaling):
        return plain / (s.long_factor if length > s.original_length else s.short_factor)[i]
    if isinstance(s, LinearScaling):
        return plain / s.factor
    if isinstance(s, Llama3Scaling):
        # Between the two wavelengths, in proportion to the number of turns.
        turns = s.original_length * plain / (2 * math.pi)
        keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
        keep = min(max(keep, 0.0), 1.0)
        return keep * plain + (1 - keep) * plain / s.factor
    if isinstance(s, YarnScaling):
        ends = [
            pairs * math.log(s.original_length / (2 * math.pi * turns), rope.theta)
            for turns in (s.beta_fast, s.beta_slow)
        ]
        first, last = (math.floor(ends[0]), math.ceil(ends[1])) if s.truncate else ends
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        slow = min(max((i - first) / (last - first or 0.001), 0.0), 1.0)
        return slow * plain / s.factor + (1 - slow) * plain
    return plain


def _turn_factor(rope: Rope) -> float:
    s = rope.scaling
    if not isinstance(s, YarnScaling | LongRopeScaling):
        return 1.0
    if s.attention_factor is not None:
        return s.attention_factor
    if isinstance(s, LongRopeScaling):
        stretched = max(s.factor, 1.0)
        return math.sqrt(1 + math.log(stretched, s.original_length))
    if s.mscale and s.mscale_all_dim:
        return _magnitude(s, s.mscale) / _magnitude(s, s.mscale_all_dim)
    return _magnitude(s, 1.0)


def _magnitude(s: YarnScaling, m: float) -> float:
    return 1 + 0.1 * m * math.log(s.factor)


def _norm(norm: Norm, params: Params, x) -> np.ndarray:
    if norm.kind == "layer":
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
        return centred / deviation * params["scale"] + params["bias"]
    scale = params["scale"] + (1.0 if norm.unit_offset else 0.0)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * scale


def _linear(params: Params, x) -> np.ndarray:
    return x @ params["kernel"] + params.get("bias", 0.0)


def _capped(x, cap: float | None) -> np.ndarray:
    return x if cap is None else cap * np.tanh(x / cap)


def _under(params: Params, name: str) -> Params:
    """Returns the parameters under a path."""
    start = f"{name}."
    return {k.removeprefix(start): v for k, v in params.items() if k.startswith(start)}
