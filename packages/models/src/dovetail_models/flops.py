# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of a decoder, from its configuration alone: parameters, FLOPs, cache.

All are sums over the matrices of a layer (`_matrices`). A parameter count takes all of them; the
cost of a token takes only the experts selected for it.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import DTypeLike

from dovetail_models.config.decoder import Attention, Config, LatentAttention, Layer, Norm
from dovetail_models.config.layer import Experts, Mlp
from dovetail_models.placing.shard import Rules, shardings


def size(config: Config) -> int:
    """Returns the number of parameters in a file of the decoder.

    A tied embedding counts once. Selection biases of routers count too.

    Raises:
        TypeError: The configuration is an encoder's.

    Example:

        >>> from dovetail_models import llama, size
        >>> size(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        7248
    """
    _check_decoder(config)
    return _outside(config) + sum(_layer(config, la) for la in config.layers)


def active(config: Config) -> int:
    """Returns the number of parameters used by one token: `size` without unselected experts.

    Raises:
        TypeError: The configuration is an encoder's.

    Example:

        >>> from dovetail_models import active, mixtral, size
        >>> config = mixtral(vocab_size=64, embed=16, depth=2, heads=2, mlp=32, experts=4, top_k=1)
        >>> size(config), active(config)
        (16592, 7376)
    """
    _check_decoder(config)
    idle = 0
    for layer in config.layers:
        if isinstance(layer.mlp, Experts):
            unused = layer.mlp.count - layer.mlp.top_k
            idle += unused * _expert(config.embed, layer.mlp)
    return size(config) - idle


def flops(config: Config, *, tokens: int, length: int, training: bool = True) -> float:
    """Returns the model FLOPs of `tokens` tokens in sequences of `length`.

    Counts matrix products and attention, 2 operations per multiplication: every matrix used by a
    token once per token, and the unmasked half (or window) of causal attention. Latent attention is
    counted expanded, its form without a cache. Recomputation does not count, as in model FLOPs
    utilisation (PaLM, 2204.02311, appendix B).

    Args:
        config: The decoder's configuration.
        tokens: Number of tokens; a multiple of `length`.
        length: Tokens per sequence.
        training: Add the backward pass, twice the forward pass.

    Raises:
        ValueError: `tokens` is no multiple of `length`.
        TypeError: The configuration is an encoder's.

    Example:

        >>> from dovetail_models import flops, llama
        >>> flops(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32), tokens=16, length=8)
        614400.0
    """
    _check_decoder(config)
    if tokens % length:
        raise ValueError(
            f"tokens must be whole sequences, got tokens={tokens}, length={length}. "
            "Use tokens=rows * length."
        )
    matrices = config.vocab_size * config.embed
    matrices += sum(_matrices(config.embed, la, all_experts=False) for la in config.layers)
    scores = sum(_scores(la.attention, length) for la in config.layers)
    return (3 if training else 1) * 2.0 * (tokens * matrices + tokens // length * scores)


def kv_bytes(
    config: Config,
    *,
    dtype: DTypeLike,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules | None = None,
) -> int:
    """Returns the bytes of a `dense_kv` cache per token, over all layers.

    Latent attention caches keys alone, which hold the values. A layer with a window needs only the
    window's tokens, but `dense_kv` keeps all.

    Args:
        config: The decoder's configuration.
        dtype: dtype of the cache.
        mesh: Count the bytes on one device that holds the token's row. None: count all.
        rules: Placement of key-value heads on the mesh.

    Raises:
        TypeError: The configuration is an encoder's.
        ValueError: The mesh axes of a rule do not divide the heads.

    Example:

        >>> from dovetail_models import kv_bytes, llama
        >>> kv_bytes(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32), dtype="bfloat16")
        128
    """
    _check_decoder(config)
    shapes = [shape for la in config.layers for shape in la.attention.cached if shape is not None]
    if mesh is not None:
        shapes = [_held(*shape, mesh, rules) for shape in shapes]
    return sum(math.prod(shape) for shape in shapes) * np.dtype(dtype).itemsize


class _Entry(nnx.Module):
    """Cache entry of one token in one layer: keys or values [heads, width]."""

    def __init__(self, heads: int, width: int):
        names = {"out_sharding": ("kv_heads", None), "units": (1, 1), "eager_sharding": False}
        self.numbers = nnx.Param(jax.ShapeDtypeStruct((heads, width), np.float32), **names)


def _held(
    heads: int, width: int, mesh: Mesh | AbstractMesh, rules: Rules | None
) -> tuple[int, ...]:
    """Returns the shape of an entry's shard on one device."""
    (place,) = jax.tree.leaves(shardings(_Entry(heads, width), mesh, rules=rules))
    return place.shard_shape((heads, width))


def _check_decoder(config: object) -> None:
    if not isinstance(config, Config):
        raise TypeError(
            f"Costs are those of a decoder's Config, got a {type(config).__name__}. "
            "Use describe(abstract(config)) for the parameters of an encoder."
        )


def _outside(config: Config) -> int:
    """Returns the number of parameters outside the layers."""
    rows = config.vocab_size * (1 if config.tie else 2)
    rows += config.max_length if config.learned_positions else 0
    return rows * config.embed + _norm(config.embed, config.norm)


def _layer(config: Config, layer: Layer) -> int:
    """Returns the number of parameters of one layer."""
    norms = 4 if layer.norms == "sandwich" else 2
    return (
        _matrices(config.embed, layer, all_experts=True)
        + _biases(config.embed, layer)
        + norms * _norm(config.embed, config.norm)
        + _inner_norms(layer.attention, config.norm)
    )


def _norm(features: int, norm: Norm) -> int:
    return features * (2 if norm.kind == "layer" else 1)


def _inner_norms(a: Attention | LatentAttention, norm: Norm) -> int:
    if isinstance(a, LatentAttention):
        return a.kv_rank + (a.q_rank or 0)
    return 2 * _norm(a.head_dim, norm) if a.qk_norm else 0


def _matrices(embed: int, layer: Layer, *, all_experts: bool) -> int:
    """Returns the elements of a layer's matrices: of all experts, or of one token's `top_k`."""
    a, mlp = layer.attention, layer.mlp
    projections = _latent(embed, a) if isinstance(a, LatentAttention) else _grouped(embed, a)
    if isinstance(mlp, Mlp):
        return projections + (3 if mlp.gated else 2) * embed * mlp.hidden
    experts = mlp.count if all_experts else mlp.top_k
    blocks = experts * mlp.hidden + (mlp.shared or 0)
    return projections + embed * (mlp.count + 3 * blocks)


def _grouped(embed: int, a: Attention) -> int:
    return 2 * embed * (a.heads + a.kv_heads) * a.head_dim


def _latent(embed: int, a: LatentAttention) -> int:
    query = a.heads * (a.nope_dim + a.rope_dim)
    queries = embed * query if a.q_rank is None else a.q_rank * (embed + query)
    keys = embed * (a.kv_rank + a.rope_dim) + a.kv_rank * a.heads * (a.nope_dim + a.v_dim)
    return queries + keys + a.heads * a.v_dim * embed


def _biases(embed: int, layer: Layer) -> int:
    """Returns the elements of a layer's vectors: biases of projections and routing, and sinks."""
    a, mlp = layer.attention, layer.mlp
    if isinstance(a, LatentAttention):
        total = embed + (a.q_rank or 0) + a.kv_rank + a.rope_dim if a.bias else 0
    else:
        total = (a.heads + 2 * a.kv_heads) * a.head_dim if a.qkv_bias else 0
        total += embed if a.out_bias else 0
        total += a.heads if a.sinks else 0
    if isinstance(mlp, Mlp):
        return total + ((2 if mlp.gated else 1) * mlp.hidden + embed if mlp.bias else 0)
    routing = mlp.count * (mlp.router_bias + mlp.selection_bias)
    return total + routing + (mlp.count * (2 * mlp.hidden + embed) if mlp.bias else 0)


def _expert(embed: int, mlp: Experts) -> int:
    """Returns the number of parameters of one expert."""
    return 3 * embed * mlp.hidden + (2 * mlp.hidden + embed if mlp.bias else 0)


def _scores(a: Attention | LatentAttention, length: int) -> float:
    """Returns the multiplications of q kᵀ and of the softmax with v, for one sequence."""
    near = min(a.window or length, length)
    pairs = near * near / 2 + (length - near) * near
    widths = 2 * a.head_dim if isinstance(a, Attention) else a.nope_dim + a.rope_dim + a.v_dim
    return a.heads * widths * pairs
