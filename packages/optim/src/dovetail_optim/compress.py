# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in one byte a value, updated block by block in place.

Decoding a whole leaf to update it would hold three float32 copies of the largest parameter. So an
elementwise transformation is given a few blocks of one leaf at a time, in a loop that decodes,
updates, encodes and writes back; with donated state nothing larger is held. In each turn it sees
the tree of parameters with `None` for the other leaves, so that masks and labels by name or by rank
still hold.

On a mesh each shard runs its own loop, as slices of a sharded axis would gather it. Codes do not
depend on the sharding: blocks lie within a shard, and the dither follows from a value's place.
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

from dovetail_optim import elementwise
from dovetail_optim._patterns import name_of, names_of
from dovetail_optim.by_name import pick
from dovetail_optim.codec import Coded, Fp8, fp8, fp8_positive
from dovetail_optim.stream import Rows, Shard, per_shard, placed, stream

CODECS = (("mu", fp8()), ("nu", fp8_positive()))
_APART = 0x8CB92BA7  # odd and large: arrays of one leaf are dithered apart


class CompressedState(NamedTuple):
    """`inner` is the state of the transformation, with a `Coded` for each leaf of a named field.

    steps: how many were taken, from which the dither follows.
    """

    steps: Int32[Array, "*batch"]
    inner: Any


def compress(
    tx: optax.GradientTransformation,
    *,
    codecs: Sequence[tuple[str, Fp8]] = CODECS,
    block: int = 256,
    shardings: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """`tx` with its state fields named in `codecs` kept in codes of eight bits.

    tx: works on each element alone, as `optax.adamw` and `optax.lion` do: a clip by the global norm
    belongs before it in an `optax.chain`. It computes in float32 (float64 for such parameters);
    updates have the parameter's dtype. block: values of the last axis that share an exponent; it
    must divide the last axis of a shard, if that is sharded.

    shardings: a pytree like the parameters, of the state's `NamedSharding`, needed where these are
    sharded over Auto axes of a mesh, of which types say nothing. It may hold other parameters too.

    Raises, at `init` or while `update` is traced, TypeError for a `tx` that is not elementwise and
    parameters that are not real floats, and ValueError for a name that is no field of the state, a
    sharded axis that `block` does not fit, or a mesh of Auto axes without `shardings`.

        tx = compress(optax.adamw(1e-3))
        state = tx.init(params)  # 2.01 bytes a parameter
        updates, state = jax.jit(tx.update, donate_argnums=(0, 1))(grads, state, params)
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
    rule = _Compressed(optax.with_extra_args_support(tx), dict(codecs), block, shardings)
    return optax.GradientTransformationExtraArgs(rule.init, rule.update)


class _Plan(NamedTuple):
    """What belongs to what, for one tree of parameters."""

    tree: Any  # of the parameters
    state: Any  # the structure of the state of `tx`
    owners: list[int | None]  # of each leaf of the state, the parameter whose shape it has
    codecs: list[Fp8 | None]  # of each leaf of the state
    shapes: list[tuple[int, ...]]  # of the parameters

    def members(self, i: int | None) -> list[int]:
        """The leaves of the state in a turn with parameter `i` alone: its own, and shared ones."""
        return [j for j, owner in enumerate(self.owners) if owner in (i, None)]

    def owned(self, i: int) -> list[int]:
        return [j for j, owner in enumerate(self.owners) if owner == i]

    def alone(self, i: int | None, x: Any) -> Any:
        """The tree of parameters with `x` for leaf `i` and None for the others."""
        leaves = range(self.tree.num_leaves)
        return jax.tree.unflatten(self.tree, [x if k == i else None for k in leaves])


class _Compressed:
    """The two functions of the transformation, and what they share."""

    def __init__(self, tx: Any, codecs: dict[str, Fp8], block: int, shardings: Any):
        self.tx, self.codecs, self.block, self.shardings = tx, codecs, block, shardings
        self._jitted: dict[Any, Any] = {}  # by the shards, which are no arrays

    def init(self, params: Any) -> CompressedState:
        params = jax.tree.map(jnp.asarray, params)
        plan, leaves = self._plan(params), jax.tree.leaves(params)
        found = dict(enumerate([] if leaves else jax.tree.leaves(self.tx.init(params))))
        for i, (x, shard) in enumerate(zip(leaves, self._shards(params, plan), strict=True)):
            # One leaf at a time, so that the state of no other is held in float32.
            state = self.tx.init(plan.alone(i, x.astype(elementwise.wide(x.dtype))))
            for j, value in zip(plan.members(i), jax.tree.leaves(state), strict=True):
                codec = plan.codecs[j]
                found[j] = value if codec is None else self._encoded(codec, value, x, shard)
        inner = jax.tree.unflatten(plan.state, [found[j] for j in range(len(found))])
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
        """`update`, compiled once also where its caller is not."""
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
        """Where the state of each parameter is sharded; if there is none yet, where that is."""
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
    """One call of `update`: what holds for all its leaves."""

    tx: Any
    plan: _Plan
    block: int
    steps: Array
    extra: dict[str, Any]
    has_params: bool

    def leaf(
        self, i: int, given: tuple[Array, Array], owned: Any, shared: Any, shard: Shard | None
    ) -> tuple[Array, dict[int, Any]]:
        """The update of leaf `i` of `given`, (gradient, parameter), and its state by index."""
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
            found = stream(turn, seen, views, rows=rows.rows, most=rows.most, live=whole[1] >= 0)
            return jax.tree.map(lambda x, like: x.reshape(like.shape), found, (write, owned))

        u, owned = per_shard(on_shard, shard, (write, read, owned), (shared, self.steps))
        return _as_sharded(u, p), owned

    def step(self, i: int, g: Array, p: Array, owned: Any, shared: Any) -> Any:
        """The update of some elements of leaf `i`, and their state, in the wide dtype."""
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
        """What belongs to no parameter, such as a count of steps, after the step.

        It is the same for any elements of leaf 0, of dtype as `p`: for none of them.
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
    """The codes of `x`, which is made to hang on the parameter.

    XLA interprets what follows from a constant while it compiles: of zeros, 5 s a million values.
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
    """`values` as `coded` holds them, each array dithered apart."""
    found = {}
    for j, x in values.items():
        codec, bits = plan.codecs[j], dither + jnp.uint32(j * _APART % 2**32)
        found[j] = (
            x.astype(coded[j].dtype) if codec is None else codec.encode(x, block=block, dither=bits)
        )
    return found


def _as_sharded(x: Array, like: Array) -> Array:
    """`x` sharded as the type of `like` says: after a step on a finer sharding of the state."""
    want, have = jax.typeof(like).sharding, jax.typeof(x).sharding
    return x if want.spec == have.spec else reshard(x, want)
