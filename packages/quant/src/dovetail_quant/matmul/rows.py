# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Products over `PackedWeights`: checks, batch axes as rows, gradients, explicit meshes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from qwix import QArray

from dovetail_quant.codes.codes import check
from dovetail_quant.codes.layout import PackedWeights, pack_weights, unpack_weights

Run = Callable[[Array, PackedWeights], Array]  # [R, K] and codes -> [R, N], both in `wide` dtypes


def wide(dtype: DTypeLike) -> np.dtype:
    """Returns the dtype of sums for rows of this dtype: float32, or float64 for float64."""
    return np.promote_types(dtype, np.float32)


def check_single(w: QArray) -> None:
    """Raises ValueError unless w is canonical and one matrix."""
    check(w)
    if w.qvalue.ndim != 2:
        raise ValueError(
            f"a product needs the codes [K, N] of one matrix, got codes={tuple(w.qvalue.shape)}; "
            "write jax.vmap(matmul.prepare)(w) and jax.vmap(matmul)(x, prepared)"
        )


def check_one(values: Array) -> None:
    """Raises ValueError unless the values of prepared weights are one matrix."""
    if values.ndim != 2:
        raise ValueError(
            "a product needs the prepared codes of one matrix, got values="
            f"{tuple(values.shape)}; write jax.vmap(matmul)(x, prepared)"
        )


def check_rows(x: Any, inputs: int) -> None:
    """Raises TypeError or ValueError unless x is floating [*batch, K]."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"x must be floating point, got x of dtype={x.dtype}; write x.astype(jnp.float32)"
        )
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(
            f"x must be [*batch, K] with K={inputs} as the codes have, got x={tuple(x.shape)}; "
            f"write x.reshape(-1, {inputs}) if it has the inputs in more axes"
        )


def prepare(w: QArray | PackedWeights) -> PackedWeights:
    """Returns w packed; on an explicit mesh with the sharding of w's axes."""
    if isinstance(w, PackedWeights):
        return w
    check_single(w)
    mesh, (of_inputs, of_outputs) = placement(w.qvalue)
    if mesh is None:
        return pack_weights(w)
    places = _places(mesh, jax.eval_shape(pack_weights, w), (of_outputs, of_inputs))
    return _partitioned(pack_weights, places)(w)


def codes(packed: PackedWeights) -> QArray:
    """Inverts `prepare`."""
    mesh, placed = placement(packed.values)
    if mesh is None:
        return unpack_weights(packed)
    places = _places(mesh, jax.eval_shape(unpack_weights, packed), placed[::-1])
    return _partitioned(unpack_weights, places)(packed)


class OfPacked:
    """The weights of a product over packed codes: packed by `prepare` and back by `codes`."""

    def checked(self, packed: PackedWeights) -> PackedWeights:
        """Returns the weights; ValueError for those that the product cannot multiply."""
        return packed

    def prepare(self, w: QArray | PackedWeights) -> PackedWeights:
        """Packs the codes [K, N]; ValueError for those that the product cannot multiply."""
        return self.checked(prepare(w))

    def codes(self, prepared: PackedWeights) -> QArray:
        """Inverts `prepare`, bit for bit."""
        return codes(prepared)


def call(run: Run, back: Run, x: Array, packed: PackedWeights) -> Array:
    """Calls `run` on x [*batch, K] as rows.

    Args:
        run: Maps rows [R, K] and packed weights to [R, N].
        back: Gradient in x: maps [R, N] and packed weights to [R, K].
        x: Activations.
        packed: Packed weights.
    """
    check_one(packed.values)
    check_rows(x, packed.in_features)

    def product(x: Array, packed: PackedWeights) -> Array:
        rows = x.reshape(-1, packed.in_features)
        y: Any = _product(rows, packed, run, back)
        return y.reshape(*x.shape[:-1], packed.out_features)

    over = placement(packed.values)
    return on_mesh(product, x, packed, outputs=packed.out_features, over=(over[0], over[1][0]))


def on_mesh(
    product: Callable[[Array, Any], Array],
    x: Array,
    prepared: Any,
    *,
    outputs: int,
    over: tuple[Any, Any],
) -> Array:
    """Calls product(x, prepared); on an explicit mesh XLA partitions it, and the result's sharding
    is set here.

    Args:
        product: The product.
        x: Activations.
        prepared: Its prepared weights.
        outputs: N.
        over: The mesh of the weights, or None, and the axes that shard their outputs. y is sharded
            like the batch axes of x, and over those axes if x leaves them free and they divide N.
    """
    (of_x, placed), (mesh, axes) = placement(x), over
    mesh = mesh or of_x
    if mesh is None:
        return product(x, prepared)
    batch = placed[:-1]
    taken = {name for entry in batch for name in _names(entry)}
    fits = taken.isdisjoint(_names(axes)) and outputs % _shards(mesh, axes) == 0
    place = NamedSharding(mesh, PartitionSpec(*batch, axes if fits else None))
    return _partitioned(product, place)(x, prepared)


def placement(a: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the mesh of an array with explicit axes, or None, and the mesh axes of each axis."""
    sharding = jax.typeof(a).sharding
    mesh, spec = sharding.mesh, tuple(sharding.spec)
    padded = spec + (None,) * (a.ndim - len(spec))
    explicit = not mesh.empty and bool(mesh.explicit_axes)
    return (mesh if explicit else None), padded


def _partitioned(f: Callable[..., Any], places: Any) -> Callable[..., Any]:
    """Wraps f: explicit mesh axes are left to XLA, and results get the shardings `places`."""
    auto_axes: Any = jax.sharding.auto_axes  # its type is that of the decorator without arguments
    return auto_axes(f, out_sharding=places)


def _places(mesh: Any, arrays: Any, axes: tuple[Any, ...]) -> Any:
    """Returns shardings of matrices over `axes`, as far as the mesh divides them."""

    def place(leaf: Any) -> NamedSharding:
        fit = [
            over if size % _shards(mesh, over) == 0 else None
            for size, over in zip(leaf.shape, axes, strict=True)
        ]
        return NamedSharding(mesh, PartitionSpec(*fit))

    return jax.tree.map(place, arrays)


def _names(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _shards(mesh: Any, axes: Any) -> int:
    return int(np.prod([mesh.shape[name] for name in _names(axes)], dtype=np.int64))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x: Array, packed: PackedWeights, run: Run, back: Run) -> Array:
    return run(x.astype(wide(x.dtype)), packed).astype(x.dtype)


def _forward(x: Any, packed: PackedWeights, run: Run, back: Run) -> tuple[Array, PackedWeights]:
    """Forward rule. Each leaf is a CustomVJPPrimal: a value, and whether it is differentiated."""

    def primal(leaf: Any) -> bool:
        return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)

    if any(leaf.perturbed for leaf in jax.tree.leaves(packed, is_leaf=primal)):
        raise ValueError(
            "a product has a gradient in x alone, got one asked in the prepared weights; write "
            "jax.lax.stop_gradient(prepared), or matmul=Reference() to train scales"
        )
    whole = jax.tree.map(lambda leaf: leaf.value, packed, is_leaf=primal)
    return _product(x.value, whole, run, back), whole


def _backward(run: Run, back: Run, packed: PackedWeights, dy: Any) -> tuple[Array | None, None]:
    if isinstance(dy, jax.custom_derivatives.SymbolicZero):
        return None, None
    return back(dy.astype(wide(dy.dtype)), packed).astype(dy.dtype), None


_product.defvjp(_forward, _backward, symbolic_zeros=True)
