# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention over sequences split among devices.

All other operations of a decoder are independent along the sequence, so context parallelism is two
exchanges around attention. Two methods complement each other:

- all_to_all (DeepSpeed-Ulysses, 2309.14509): tokens are exchanged for heads, so each device has
  some heads of the whole sequence. Any attention works. There must be enough heads.
- gather (Llama 3, 2407.21783, section 3.3.2): each device keeps its queries and gathers all keys
  and values. Attention must take pairs of positions. Good for few key-value heads.

Kernels that the partitioner cannot split run per device this way, also on meshes without a context
axis: rows and heads are split among the devices.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float, Int

from dovetail_train.mesh.mesh import BATCH_AXES

_CONTEXT, _TENSOR = "context", "tensor"


def context_parallel(
    attention: Callable[..., Any], *, method: Literal["all_to_all", "gather"] = "all_to_all"
) -> Callable[..., Any]:
    """Splits `attention` among devices: rows over (data, fsdp, expert), heads over tensor, tokens
    over context.

    The mesh is the ambient one (`jax.set_mesh`, set by the trainer), with Auto or Explicit axes.
    Without a mesh this is `attention`.

    Args:
        attention: attention(q, k, v, *, causal, positions, segment_ids, sinks, ...) with q
            [B,T,N,H], k [B,T,K,H], v [B,T,K,G] returns [B,T,N,G]; K divides N. With "gather",
            positions and segment_ids are pairs (queries, keys), as in `dovetail_kernels.attention`.
        method: "all_to_all" exchanges tokens for heads, so each device has some heads of the whole
            sequence, for any attention (2309.14509). Key-value heads fewer than the devices of a
            row are repeated. "gather" keeps the queries and gathers all keys and values, for few
            key-value heads (Llama 3, 2407.21783, section 3.3.2).

    Returns:
        A function like `attention`, for `lm_loss(attention=)` or a decoder.

    Raises:
        ValueError: Heads or tokens cannot be split, or a cache is given.
    """
    _check_method(method)

    def parallel(
        q: Float[Array, "B T N H"],
        k: Float[Array, "B T K H"],
        v: Float[Array, "B T K G"],
        *,
        causal: bool = True,
        positions: Int[Array, "B T"] | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        sinks: Float[Array, " N"] | None = None,
        kv: Any = None,
        **options: Any,
    ) -> Float[Array, "B T N G"]:
        if kv is not None:
            raise ValueError(
                "attention over a split sequence has no cache, got kv; generate with the "
                "attention itself"
            )
        mesh = jax.sharding.get_abstract_mesh()
        sides = {"positions": positions, "segment_ids": segment_ids}
        sides = {name: x for name, x in sides.items() if x is not None}
        if mesh.empty or mesh.size == 1:
            plain = {"positions": None, "segment_ids": None, **sides}
            return attention(q, k, v, causal=causal, sinks=sinks, **plain, **options)
        shards = mesh.shape.get(_CONTEXT, 1)
        split = mesh.shape.get(_TENSOR, 1) * (shards if method == "all_to_all" else 1)
        _check(q, mesh, shards=shards, split=split, method=method)
        exchange = _all_to_all if method == "all_to_all" else _gather

        def local(q: Array, k: Array, v: Array, sinks: Any, sides: dict[str, Array]) -> Array:
            bound = {"causal": causal, **options}
            return exchange(attention, (q, k, v), sinks=sinks, sides=sides, bound=bound, c=shards)

        rows, tokens, heads = (_above_one(mesh, x) for x in (BATCH_AXES, (_CONTEXT,), (_TENSOR,)))
        # A gradient is summed over every axis that its spec leaves out, even of size 1.
        ones = tuple(axis for axis, size in mesh.shape.items() if size == 1)
        whole, side = PartitionSpec(rows + ones, tokens, heads), PartitionSpec(rows + ones, tokens)
        own = None if sinks is None else PartitionSpec(heads + ones)

        def divided(q: Array, k: Array, v: Array, sinks: Any, sides: dict[str, Array]) -> Array:
            k, v = (_enough_heads(x, heads=q.shape[2], split=split) for x in (k, v))
            # Without the check of varying axes: loops inside begin with fresh zeros.
            mapped = jax.shard_map(
                local,
                in_specs=(whole, whole, whole, own, dict.fromkeys(sides, side)),
                out_specs=whole,
                check_vma=False,
            )
            return mapped(q, k, v, sinks, sides)

        run: Any = divided
        if AxisType.Explicit in mesh.axis_types:  # the types of q, k, v need not be as split here
            run = jax.sharding.auto_axes(divided, out_sharding=PartitionSpec(rows, tokens, heads))
        return run(q, k, v, sinks, sides)

    return parallel


def _above_one(mesh: Any, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if mesh.shape.get(axis, 1) > 1)


def _all_to_all(
    attention: Callable[..., Any],
    qkv: tuple[Array, Array, Array],
    *,
    sinks: Array | None,
    sides: dict[str, Array],
    bound: dict[str, Any],
    c: int,
) -> Array:
    if c > 1:
        qkv = jax.tree.map(lambda x: jax.lax.all_to_all(x, _CONTEXT, 2, 1, tiled=True), qkv)
        sides = jax.tree.map(lambda x: jax.lax.all_gather(x, _CONTEXT, axis=1, tiled=True), sides)
    if sinks is not None and c > 1:
        each = sinks.shape[0] // c
        sinks = jax.lax.dynamic_slice_in_dim(sinks, jax.lax.axis_index(_CONTEXT) * each, each)
    given = {"positions": None, "segment_ids": None, **sides}
    out = attention(*qkv, sinks=sinks, **given, **bound)
    return jax.lax.all_to_all(out, _CONTEXT, 1, 2, tiled=True) if c > 1 else out


def _gather(
    attention: Callable[..., Any],
    qkv: tuple[Array, Array, Array],
    *,
    sinks: Array | None,
    sides: dict[str, Array],
    bound: dict[str, Any],
    c: int,
) -> Array:
    q, k, v = qkv
    if c > 1:
        rows, length = q.shape[:2]
        first = jax.lax.axis_index(_CONTEXT) * length
        own_positions = jnp.broadcast_to(first + jnp.arange(length), (rows, length))
        sides = {"positions": own_positions, **sides}

        def all_of(x: Array) -> Array:
            return jax.lax.all_gather(x, _CONTEXT, axis=1, tiled=True)

        k, v = all_of(k), all_of(v)
        pairs = {name: (x, all_of(x)) for name, x in sides.items()}
    else:
        pairs = {name: (x, x) for name, x in sides.items()}
    given = {"positions": None, "segment_ids": None, **pairs}
    return attention(q, k, v, sinks=sinks, **given, **bound)


def _enough_heads(x: Float[Array, "B T K H"], *, heads: int, split: int) -> Array:
    """Repeats key-value heads until each of `split` devices can have one, as few times as
    possible.
    """
    count = x.shape[2]
    wanted = math.lcm(count, split)
    wanted = wanted if heads % wanted == 0 else heads
    return x if wanted == count else jnp.repeat(x, wanted // count, axis=2)


def _check_method(method: str) -> None:
    if method not in ("all_to_all", "gather"):
        raise ValueError(
            f'method must be "all_to_all" or "gather", got method={method!r}; write '
            f'context_parallel(attention, method="all_to_all")'
        )


def _check(q: Array, mesh: Any, *, shards: int, split: int, method: str) -> None:
    rows = math.prod(mesh.shape.get(axis, 1) for axis in BATCH_AXES)
    if q.shape[0] % rows or q.shape[1] % shards:
        raise ValueError(
            f"rows and tokens must be divisible by the devices that share them, got "
            f"rows={q.shape[0]} over {rows} and tokens={q.shape[1]} over {shards}; pass "
            f"{max(1, q.shape[0] // rows) * rows} rows of {-(-q.shape[1] // shards) * shards} "
            "tokens, or another mesh"
        )
    if q.shape[2] % split:
        other = "a smaller context axis, or method='gather'" if method == "all_to_all" else "a mesh"
        raise ValueError(
            f"query heads must be divisible by the devices that share a row, got heads="
            f"{q.shape[2]} over {split} with method={method!r}; use {other}"
        )


def balanced_order(length: int, *, shards: int) -> Int[np.ndarray, " length"]:
    """Returns an order of tokens with equal work for every device of a causal "gather".

    Device i of c gets pieces i and 2c − 1 − i of 2c (Llama 3, 2407.21783, section 3.3.2). Apply it
    along the token axis of tokens, targets, mask, segment_ids and positions. The batch must have
    positions, since masks go by position. Raises ValueError unless 2·shards divides length.

    Example:

        >>> balanced_order(8, shards=2)
        array([0, 1, 6, 7, 2, 3, 4, 5])
    """
    if shards < 1 or length % (2 * shards):
        raise ValueError(
            f"length must be divisible by 2·shards, got length={length}, shards={shards}; pad the "
            f"rows to {-(-length // (2 * max(shards, 1))) * 2 * max(shards, 1)}"
        )
    pieces = np.arange(length).reshape(2 * shards, -1)
    pairs = [(i, 2 * shards - 1 - i) for i in range(shards)]
    return pieces[[i for pair in pairs for i in pair]].reshape(-1)
