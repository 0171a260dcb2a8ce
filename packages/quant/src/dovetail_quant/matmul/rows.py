# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What products over `Packed` share: checks, batch axes as rows, gradients, explicit meshes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from qwix import QArray

from dovetail_quant.codes import check
from dovetail_quant.layout import Packed, pack, unpack

Run = Callable[[Array, Packed], Array]  # [R, K] and blocks -> [R, N], both in `wide` dtypes


def wide(dtype: DTypeLike) -> np.dtype:
    """What a product of rows of this dtype accumulates in: float32, float64 for float64."""
    return np.promote_types(dtype, np.float32)


def check_single(w: QArray) -> None:
    """Raises ValueError unless w is canonical and one matrix."""
    check(w)
    if w.qvalue.ndim != 2:
        raise ValueError(
            f"a product needs the codes [K, N] of one matrix, got codes={tuple(w.qvalue.shape)}; "
            "write jax.vmap(matmul.prepare)(w) and jax.vmap(matmul)(x, prepared)"
        )


def check_rows(x: Any, inputs: int) -> None:
    """Raises unless x is floating [*batch, K]."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"x must be floating point, got x of dtype={x.dtype}; write x.astype(jnp.float32)"
        )
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(
            f"x must be [*batch, K] with K={inputs} as the codes have, got x={tuple(x.shape)}; "
            f"write x.reshape(-1, {inputs}) if it has the inputs in more axes"
        )


def prepare(w: QArray) -> Packed:
    """w as blocks; on an explicit mesh with blocks sharded as N was, and groups as K was.

    On any other mesh there are blocks for every part of N.
    """
    check_single(w)
    mesh, (of_inputs, of_outputs) = placement(w.qvalue)
    if mesh is None:
        return pack(w, shards=_shards_now(w.qvalue))
    shards = _shards(mesh, of_outputs)
    groups = of_inputs if w.scale.shape[0] % _shards(mesh, of_inputs) == 0 else None
    three, packing = PartitionSpec(of_outputs, groups), functools.partial(pack, shards=shards)
    places = jax.tree.map(lambda _: NamedSharding(mesh, three), jax.eval_shape(packing, w))
    return _partitioned(packing, places)(w)


def codes(packed: Packed) -> QArray:
    """The inverse of `prepare`."""
    mesh, placed = placement(packed.values)
    if mesh is None:
        return unpack(packed)
    blocks, groups = placed[:2]

    def place(leaf: Any) -> NamedSharding:
        fit = [
            axes if size % _shards(mesh, axes) == 0 else None
            for size, axes in zip(leaf.shape, (groups, blocks), strict=True)
        ]
        return NamedSharding(mesh, PartitionSpec(*fit))

    places = jax.tree.map(place, jax.eval_shape(unpack, packed))
    return _partitioned(unpack, places)(packed)


def call(run: Run, back: Run, x: Array, packed: Packed) -> Array:
    """run on x [*batch, K] as rows; its gradient in x is back's, [R, N] and blocks -> [R, K]."""
    if packed.values.ndim != 4:
        raise ValueError(
            "a product needs the prepared codes of one matrix, got values="
            f"{tuple(packed.values.shape)}; write jax.vmap(matmul)(x, prepared)"
        )
    check_rows(x, packed.inputs)

    def product(x: Array, packed: Packed) -> Array:
        rows = x.reshape(-1, packed.inputs)
        y: Any = _product(rows, packed, run, back)
        return y.reshape(*x.shape[:-1], packed.outputs)

    over = placement(packed.values)
    return on_mesh(product, x, packed, outputs=packed.outputs, over=(over[0], over[1][0]))


def on_mesh(
    product: Callable[[Array, Any], Array],
    x: Array,
    prepared: Any,
    *,
    outputs: int,
    over: tuple[Any, Any],
) -> Array:
    """product(x, prepared); on an explicit mesh XLA partitions it, and we say where y lies.

    over: the mesh of the weights, or None, and the axes over which their outputs are sharded. y is
    sharded as the batch axes of x, and over those axes if x leaves them free and they divide N.
    """
    (of_x, placed), (mesh, axes) = placement(x), over
    mesh = mesh or of_x
    if mesh is None:
        return product(x, prepared)
    batch = placed[:-1]
    taken = {name for one in batch for name in _names(one)}
    fits = taken.isdisjoint(_names(axes)) and outputs % _shards(mesh, axes) == 0
    place = NamedSharding(mesh, PartitionSpec(*batch, axes if fits else None))
    return _partitioned(product, place)(x, prepared)


def placement(a: Any) -> tuple[Any, tuple[Any, ...]]:
    """The mesh of an array with explicit axes, or None, and over what each axis is sharded."""
    sharding = jax.typeof(a).sharding
    mesh, spec = sharding.mesh, tuple(sharding.spec)
    padded = spec + (None,) * (a.ndim - len(spec))
    explicit = not mesh.empty and bool(mesh.explicit_axes)
    return (mesh if explicit else None), padded


def _partitioned(f: Callable[..., Any], places: Any) -> Callable[..., Any]:
    """f with its arrays' explicit axes left to XLA, and its results at `places`."""
    auto_axes: Any = jax.sharding.auto_axes  # its type is that of the decorator without arguments
    return auto_axes(f, out_sharding=places)


def _shards_now(codes: Any) -> int:
    """Into how many parts the outputs of codes on a mesh without types are cut."""
    sharding = None if isinstance(codes, Tracer) else codes.sharding
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) < codes.ndim:
        return 1
    return _shards(sharding.mesh, sharding.spec[-1])


def _names(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _shards(mesh: Any, axes: Any) -> int:
    return int(np.prod([mesh.shape[name] for name in _names(axes)], dtype=np.int64))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x: Array, packed: Packed, run: Run, back: Run) -> Array:
    return run(x.astype(wide(x.dtype)), packed).astype(x.dtype)


def _forward(x: Any, packed: Packed, run: Run, back: Run) -> tuple[Array, Packed]:
    """Each leaf is a CustomVJPPrimal: a value, and whether it is differentiated."""

    def primal(leaf: Any) -> bool:
        return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)

    if any(leaf.perturbed for leaf in jax.tree.leaves(packed, is_leaf=primal)):
        raise ValueError(
            "a product has a gradient in x alone, got one asked in the prepared weights; write "
            "jax.lax.stop_gradient(prepared), or matmul=Reference() to train scales"
        )
    whole = jax.tree.map(lambda leaf: leaf.value, packed, is_leaf=primal)
    return _product(x.value, whole, run, back), whole


def _backward(run: Run, back: Run, packed: Packed, dy: Any) -> tuple[Array | None, None]:
    if isinstance(dy, jax.custom_derivatives.SymbolicZero):
        return None, None
    return back(dy.astype(wide(dy.dtype)), packed).astype(dy.dtype), None


_product.defvjp(_forward, _backward, symbolic_zeros=True)
