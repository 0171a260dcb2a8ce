# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in one byte per value, updated block by block in place.

Decoding a whole leaf for its update would hold three float32 copies of the largest parameter. So a
loop gives an elementwise transformation a few blocks of one leaf at a time: it decodes, updates,
encodes and writes back. With donated state nothing larger is held. In each iteration the
transformation sees the tree of parameters with `None` for the other leaves, so masks and labels by
name or by rank still hold.

On a mesh each shard runs its own loop, since slices of a sharded axis would gather it. Codes do not
depend on the sharding: blocks lie within a shard, and the dither depends on a value's place.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import reshard
from jaxtyping import Array, Int32

from dovetail_optim import _elsewhere
from dovetail_optim._patterns import name_of, names_of
from dovetail_optim.compressing import elementwise
from dovetail_optim.compressing.codec import Coded, Fp8, fp8, fp8_positive
from dovetail_optim.compressing.stream import Rows, Shard, per_shard, placed, stream
from dovetail_optim.route import pick, with_extra_args

CODECS = (("mu", fp8()), ("nu", fp8_positive()))
_APART = 0x8CB92BA7  # odd and large: arrays of one leaf are dithered apart


class CompressedState(NamedTuple):
    """State of `compress`.

    Attributes:
        steps: Number of steps taken; determines the dither.
        inner: State of the transformation, with a `Coded` for each leaf of a named field.
    """

    steps: Int32[Array, "*batch"]
    inner: Any


@_elsewhere.call
def compress(
    tx: optax.GradientTransformation,
    *,
    codecs: Sequence[tuple[str, Fp8]] = CODECS,
    block: int = 256,
    shardings: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Stores the state fields named in `codecs` with eight bits per value.

    `tx` computes in float32 (float64 for such parameters). Updates have the parameter's dtype.

    Args:
        tx: A transformation of each element alone, such as `optax.adamw` or `optax.lion`. Put a
            clip by the global norm before it in an `optax.chain`.
        codecs: Pairs of a state field and its codec. Default: mu and nu.
        block: Values of the last axis that share an exponent. It must divide the last axis of a
            shard, if that axis is sharded.
        shardings: A pytree like the parameters with the state's `NamedSharding`. Required if these
            are sharded over Auto axes of a mesh, since types do not show them. It may hold further
            parameters.

    Raises:
        TypeError: At `init` or during tracing of `update`: `tx` is not elementwise, or a parameter
            is not of a real floating dtype.
        ValueError: Likewise: a name is no field of the state, `block` does not fit a sharded axis,
            or the mesh has Auto axes and there are no `shardings`.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> tx = compress(optax.adamw(1e-3))
        >>> state = tx.init({"w": jnp.ones((4, 512))})  # 2.01 bytes per parameter
        >>> state.inner[0].mu["w"].codes.dtype
        dtype('uint8')
    """
    codecs = tuple(codecs)
    for entry in codecs:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Fp8)):
            raise TypeError(
                "codecs must be pairs of a state field and its codec; got "
                f"codecs={codecs!r}; write codecs=(('mu', fp8()),)"
            )
    if block < 1:
        raise ValueError(f"block must be at least 1; got block={block}; write block=256")
    rule = _Compressed(with_extra_args(tx), dict(codecs), block, shardings)
    return optax.GradientTransformationExtraArgs(rule.init, rule.update)


class _Plan(NamedTuple):
    """Relation between the state and one tree of parameters."""

    tree: Any  # of the parameters
    state: Any  # the structure of the state of `tx`
    owners: list[int | None]  # of each leaf of the state, the parameter whose shape it has
    codecs: list[Fp8 | None]  # of each leaf of the state
    shapes: list[tuple[int, ...]]  # of the parameters

    def members(self, i: int | None) -> list[int]:
        """Returns the leaves of the state for parameter `i` alone: its own and the shared ones."""
        return [j for j, owner in enumerate(self.owners) if owner in (i, None)]

    def owned(self, i: int) -> list[int]:
        return [j for j, owner in enumerate(self.owners) if owner == i]

    def alone(self, i: int | None, x: Any) -> Any:
        """Returns the tree of parameters with `x` for leaf `i` and None for the others."""
        leaves = range(self.tree.num_leaves)
        return jax.tree.unflatten(self.tree, [x if k == i else None for k in leaves])


class _Compressed:
    """The two functions of the transformation."""

    def __init__(self, tx: Any, codecs: dict[str, Fp8], block: int, shardings: Any):
        self.tx, self.codecs, self.block, self.shardings = tx, codecs, block, shardings
        self._jitted: dict[Any, Any] = {}  # by the shards, which are no arrays

    def init(self, params: Any) -> CompressedState:
        with jax.transfer_guard("allow"):
            params = jax.tree.map(jnp.asarray, params)
            plan, leaves = self._plan(params), jax.tree.leaves(params)
            inner_leaves = dict(enumerate([] if leaves else jax.tree.leaves(self.tx.init(params))))
            for i, (x, shard) in enumerate(zip(leaves, self._shards(params, plan), strict=True)):
                # One leaf at a time, so that the state of no other is held in float32.
                state = self.tx.init(plan.alone(i, x.astype(elementwise.wide(x.dtype))))
                for j, value in zip(plan.members(i), jax.tree.leaves(state), strict=True):
                    codec = plan.codecs[j]
                    inner_leaves[j] = (
                        value if codec is None else self._encoded(codec, value, x, shard)
                    )
            inner = jax.tree.unflatten(
                plan.state, [inner_leaves[j] for j in range(len(inner_leaves))]
            )
            return CompressedState(jnp.zeros((), jnp.int32), inner)

    def _encoded(self, codec: Fp8, x: Array, p: Array, shard: Shard | None) -> Coded:
        return per_shard(lambda x, _: _encode(codec, *x, self.block), shard, (x, p), None)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, CompressedState]:
        like = jax.tree.map(jnp.asarray, updates if params is None else params)
        if not jax.tree.leaves(like):
            updates, inner = self.tx.update(updates, state.inner, params, **extra)
            return updates, CompressedState(state.steps + 1, inner)
        shards = tuple(self._shards(like, self._plan(like), state.inner))
        # What is no array, such as a function, cannot pass jax.jit and is bound to it.
        arrays = {k: v for k, v in extra.items() if all(map(_is_array, jax.tree.leaves(v)))}
        rest = {k: v for k, v in extra.items() if k not in arrays}
        moved = functools.partial(self._moved, shards, rest)
        if rest:
            return moved(updates, state, params, arrays)
        if shards not in self._jitted:
            self._jitted[shards] = jax.jit(moved)
        return self._jitted[shards](updates, state, params, arrays)

    def _moved(
        self, shards: Any, rest: Any, updates: Any, state: CompressedState, params: Any, extra: Any
    ) -> tuple[Any, CompressedState]:
        """Runs `update`; compiled once, also if its caller is not."""
        extra = extra | rest
        like = updates if params is None else params
        plan = self._plan(like)
        elementwise.check(self.tx, like, has_params=params is not None, extra=extra)
        call = _Call(self.tx, plan, self.block, state.steps, extra, params is not None)
        after = dict(enumerate(plan.state.flatten_up_to(state.inner)))
        shared = {j: after[j] for j in plan.members(None)}
        moved = []
        leaves = zip(plan.tree.flatten_up_to(updates), jax.tree.leaves(like), strict=True)
        for i, given in enumerate(leaves):
            owned = {j: after[j] for j in plan.owned(i)}
            u, owned = call.leaf(i, given, owned, shared, shards[i])
            moved.append(u)
            after |= owned
        after |= call.shared(jax.tree.leaves(like)[0], shared)
        inner = jax.tree.unflatten(plan.state, [after[j] for j in range(len(after))])
        return jax.tree.unflatten(plan.tree, moved), CompressedState(state.steps + 1, inner)

    def _plan(self, params: Any) -> _Plan:
        for path, x in jax.tree_util.tree_leaves_with_path(params):
            if not jnp.issubdtype(x.dtype, jnp.floating):
                raise TypeError(
                    "compress moves real floating point parameters; got "
                    f"{name_of(path)!r} of {x.dtype}; leave it to another rule of "
                    "dovetail_optim.route"
                )
        owners = elementwise.owners(self.tx, params)
        shapes = jax.eval_shape(self.tx.init, elementwise.structs(params))
        depth = [len(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        fields = [
            {k.name for k in path[: len(path) - depth[i]] if hasattr(k, "name")}
            if i is not None
            else set()
            for i, (path, _) in zip(
                owners, jax.tree_util.tree_leaves_with_path(shapes), strict=True
            )
        ]
        known = sorted(set().union(*fields))
        for name in self.codecs:
            if depth and name not in known:
                raise ValueError(
                    "codecs must name fields of the state that are shaped as the parameters; got "
                    f"codec name {name!r}; this transformation has {known}"
                )
        codecs = [next((c for n, c in self.codecs.items() if n in f), None) for f in fields]
        leaves, tree = jax.tree.flatten(params)
        state = jax.tree.structure(shapes)
        return _Plan(tree, state, owners, codecs, [x.shape for x in leaves])

    def _shards(self, params: Any, plan: _Plan, state: Any = None) -> list[Shard | None]:
        """Returns the shards of each parameter's state; before the first state, those of the
        parameter.
        """
        leaves = jax.tree.leaves(params)
        kept = [] if state is None else plan.state.flatten_up_to(state)
        for i, x in zip(plan.owners, kept, strict=False):
            if i is not None:  # it may be split further, as state_shardings(zero=...) does
                leaves[i] = x.codes if isinstance(x, Coded) else x
        given = [None] * len(leaves)
        if self.shardings is not None:
            given = pick(self.shardings, params, what="shardings")
        shards = [placed(x, s) for x, s in zip(leaves, given, strict=True)]
        for name, x, shard in zip(names_of(params), leaves, shards, strict=True):
            parts = shard.shards(x.ndim - 1) if shard and x.ndim else 1
            if parts > 1 and x.shape[-1] % (parts * self.block):
                n = x.shape[-1] // parts
                raise ValueError(
                    f"block must divide the last axis of every shard; got block={self.block} and "
                    f"{name!r} with {n} of {x.shape[-1]} a shard; write "
                    f"block={math.gcd(n, self.block)}, or shard another axis"
                )
        return shards


class _Call(NamedTuple):
    """The arguments of one call of `update`."""

    tx: Any
    plan: _Plan
    block: int
    steps: Array
    extra: dict[str, Any]
    has_params: bool

    def leaf(
        self, i: int, given: tuple[Array, Array], owned: Any, shared: Any, shard: Shard | None
    ) -> tuple[Array, dict[int, Any]]:
        """Updates leaf `i`.

        Args:
            i: Index of the parameter.
            given: Its gradient and value.
            owned: Its leaves of the state, by index.
            shared: Leaves of the state that belong to no parameter, by index.
            shard: Sharding of the state.

        Returns:
            The update, and the new leaves of the state.
        """
        g, p = given
        if not p.size:
            return g.astype(p.dtype), owned
        # The update is written over the gradient, if it has the same dtype.
        write = g if g.dtype == p.dtype else jnp.zeros(g.shape, p.dtype)
        read = (p, None if g.dtype == p.dtype else g)

        def on_shard(split: Any, whole: Any) -> Any:
            rows = Rows(split[0].shape, self.block)

            def turn(start: Array, read: Any, write: Any) -> Any:
                (p, g), (u, coded) = read, write
                key = whole[1].astype(jnp.uint32)
                dither = rows.dither(start, len(u), key, shard, given[1].shape)
                values = _decoded(self.plan, coded, self.block)
                u, values = self.step(i, u if g is None else g, p, values, whole[0])
                return u.astype(p.dtype), _encoded(self.plan, coded, values, dither, self.block)

            write, read, owned = split
            views, seen = jax.tree.map(rows.of, ((write, owned), read))
            results = stream(turn, seen, views, rows=rows.rows, most=rows.most, live=whole[1] >= 0)
            return jax.tree.map(lambda x, like: x.reshape(like.shape), results, (write, owned))

        u, owned = per_shard(on_shard, shard, (write, read, owned), (shared, self.steps))
        return _as_sharded(u, p), owned

    def step(self, i: int, g: Array, p: Array, owned: Any, shared: Any) -> Any:
        """Updates some elements of leaf `i` in the wide dtype."""
        rank = len(self.plan.shapes[i])

        def fed(x: Array) -> Array:
            x = x.astype(elementwise.wide(p.dtype))
            return x.reshape((1,) * (rank - 2) + x.shape if rank > 1 else (-1,) * rank)

        wide = self.plan.alone(i, fed(p)) if self.has_params else None
        state = jax.tree.map(fed, owned) | shared
        leaves = [state.get(j) for j in range(len(self.plan.owners))]
        state = jax.tree.unflatten(self.plan.state, leaves)
        u, state = self.tx.update(self.plan.alone(i, fed(g)), state, wide, **self.extra)
        moved = dict(zip(self.plan.members(i), jax.tree.leaves(state), strict=True))
        values = {j: moved[j].reshape(p.shape) for j in owned}
        return jax.tree.leaves(u)[0].reshape(p.shape), values

    def shared(self, p: Array, shared: Any) -> dict[int, Array]:
        """Updates state that belongs to no parameter, such as a count of steps.

        It does not depend on the elements of leaf 0, so it is computed for none of them.
        """
        wide = elementwise.wide(p.dtype)
        none = self.plan.alone(0, jnp.zeros((0,) * p.ndim, wide))
        state = {j: jnp.zeros((0,) * p.ndim, wide) for j in self.plan.owned(0)} | shared
        leaves = [state.get(j) for j in range(len(self.plan.owners))]
        params = none if self.has_params else None
        state = jax.tree.unflatten(self.plan.state, leaves)
        _, state = self.tx.update(none, state, params, **self.extra)
        moved = dict(zip(self.plan.members(0), jax.tree.leaves(state), strict=True))
        return {j: moved[j] for j in shared}


@functools.partial(jax.jit, static_argnums=(0, 3))
def _encode(codec: Fp8, x: Array, p: Array, block: int) -> Coded:
    """Encodes `x`, with an artificial dependence on the parameter.

    XLA evaluates constants while it compiles; for zeros that takes 5 s per million values.
    """
    return codec.encode(jnp.where(p < -jnp.inf, p.astype(x.dtype), x), block=block)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | int | float)


def _decoded(plan: _Plan, coded: dict[int, Any], block: int) -> dict[int, Array]:
    codecs = {j: plan.codecs[j] for j in coded}
    return {
        j: x if (c := codecs[j]) is None else c.decode(x, block=block) for j, x in coded.items()
    }


def _encoded(
    plan: _Plan, coded: dict[int, Any], values: dict[int, Array], dither: Array, block: int
) -> dict[int, Any]:
    """Encodes `values` in the form of `coded`, each array with its own dither."""
    encoded = {}
    for j, x in values.items():
        codec, bits = plan.codecs[j], dither + jnp.uint32(j * _APART % 2**32)
        encoded[j] = (
            x.astype(coded[j].dtype) if codec is None else codec.encode(x, block=block, dither=bits)
        )
    return encoded


def _as_sharded(x: Array, like: Array) -> Array:
    """Reshards `x` like `like`, after a step on a finer sharding of the state."""
    want, have = jax.typeof(like).sharding, jax.typeof(x).sharding
    return x if want.spec == have.spec else reshard(x, want)
