# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder costs, from its configuration alone: parameters, products, cache.

Everything here is a sum over the matrices of a layer, which `_matrices` lists once: a parameter
count takes all of them, the cost of a token takes of a mixture of experts only those it is sent to.
"""

import math

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import DTypeLike

from dovetail_models.config import Attention, Config, Experts, LatentAttention, Layer, Mlp, Norm
from dovetail_models.shard import RULES, Rules, shardings


def size(config: Config) -> int:
    """Numbers that a file of the decoder holds; a tied embedding counts once.

    These are the parameters and, where a router has one, its selection bias. Raises TypeError, as
    everything here does, for the configuration of an encoder.
    """
    _check_decoder(config)
    return _outside(config) + sum(_layer(config, la) for la in config.layers)


def active(config: Config) -> int:
    """Parameters that one token meets: `size` without the experts that it is not sent to."""
    _check_decoder(config)
    idle = 0
    for layer in config.layers:
        if isinstance(layer.mlp, Experts):
            unused = layer.mlp.count - layer.mlp.top_k
            idle += unused * _expert(config.embed, layer.mlp)
    return size(config) - idle


def flops(config: Config, *, tokens: int, length: int, training: bool = True) -> float:
    """Floating-point operations on `tokens` tokens in sequences of `length`.

    Counts products with matrices and of attention, 2 operations each: every matrix that a token
    meets once per token, and of causal attention the half (or the window) that is not masked.
    Latent attention is counted expanded, as it runs without a cache. `training` adds the backward
    pass, twice the forward; what recomputation repeats is not counted, as in model FLOPs
    utilisation (PaLM, 2204.02311, appendix B).
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
    rules: Rules = RULES,
) -> int:
    """Bytes that a cache of `dtype` holds per token, over all layers, as `dense_kv` makes it.

    With a mesh, what a device holds of a token whose row it has: key-value heads lie on the mesh as
    `rules` place them. Of a layer with a window a cache needs no more than the window's tokens;
    `dense_kv` keeps all.
    """
    _check_decoder(config)
    parts = [part for la in config.layers for part in la.attention.cached]
    if mesh is not None:
        parts = [_held(*part, mesh, rules) for part in parts]
    return sum(math.prod(part) for part in parts) * np.dtype(dtype).itemsize


class _Entry(nnx.Module):
    """What a cache holds of one token in one layer: keys or values [heads, width]."""

    def __init__(self, heads: int, width: int):
        names = {"out_sharding": ("kv_heads", None), "units": (1, 1), "eager_sharding": False}
        self.numbers = nnx.Param(jax.ShapeDtypeStruct((heads, width), np.float32), **names)


def _held(heads: int, width: int, mesh: Mesh | AbstractMesh, rules: Rules) -> tuple[int, ...]:
    """The part of an entry that lies on one device."""
    (place,) = jax.tree.leaves(shardings(_Entry(heads, width), mesh, rules=rules))
    return place.shard_shape((heads, width))


def _check_decoder(config: object) -> None:
    if not isinstance(config, Config):
        raise TypeError(
            f"Costs are those of a decoder's Config, got a {type(config).__name__}. "
            "Use describe(abstract(config)) for the parameters of an encoder."
        )


def _outside(config: Config) -> int:
    """Parameters that are in no layer."""
    rows = config.vocab_size * (1 if config.tie else 2)
    rows += config.max_length if config.learned_positions else 0
    return rows * config.embed + _norm(config.embed, config.norm)


def _layer(config: Config, layer: Layer) -> int:
    """Parameters of one layer."""
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
    """Elements of a layer's matrices: all of them, or those that one token meets."""
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
    """Vectors that are added: biases of projections and of routing, and attention's sinks."""
    a, mlp = layer.attention, layer.mlp
    if isinstance(a, LatentAttention):
        found = embed + (a.q_rank or 0) + a.kv_rank + a.rope_dim if a.bias else 0
    else:
        found = (a.heads + 2 * a.kv_heads) * a.head_dim if a.qkv_bias else 0
        found += embed if a.out_bias else 0
        found += a.heads if a.sinks else 0
    if isinstance(mlp, Mlp):
        return found + ((2 if mlp.gated else 1) * mlp.hidden + embed if mlp.bias else 0)
    routing = mlp.count * (mlp.router_bias + mlp.selection_bias)
    return found + routing + (mlp.count * (2 * mlp.hidden + embed) if mlp.bias else 0)


def _expert(embed: int, mlp: Experts) -> int:
    """Parameters of one expert."""
    return 3 * embed * mlp.hidden + (2 * mlp.hidden + embed if mlp.bias else 0)


def _scores(a: Attention | LatentAttention, length: int) -> float:
    """Products of q kᵀ and of its softmax with v, over one sequence."""
    near = min(a.window or length, length)
    pairs = near * near / 2 + (length - near) * near
    widths = 2 * a.head_dim if isinstance(a, Attention) else a.nope_dim + a.rope_dim + a.v_dim
    return a.heads * widths * pairs
