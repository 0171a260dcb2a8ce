# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary over mesh axes: each device has V / n columns of the head.

A device makes its pass over its own columns, with labels counted from its first one. Then four
numbers per token are combined over the mesh axes (compare Megatron-LM, 1909.08053, section 3):

    top = max_i top_i    exps = sum_i exps_i exp(top_i - top)    label = sum_i label_i

and `moment` as `exps`, `total` as `label`. From there on each device knows the softmax of its
columns, and the gradients of its columns of w and bias are complete. Only the gradient of x is
summed over the devices. No device sends logits or weights.

Inside of `jax.shard_map` the types say which arrays differ between devices, and JAX derives the
sums of a gradient from them. They need its default, `check_vma=True`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from dovetail_kernels.mesh import varies, vary_over

Names = tuple[str, ...]


class ColumnSums(NamedTuple):
    """State of one pass over the columns. `exps` and `moment` are relative to exp(top).

    Attributes:
        top: Largest logit.
        exps: Sum of exp(z - top).
        moment: Sum of z exp(z - top).
        label: Logit of the label.
        total: Sum of the logits.
        best: First column with the largest logit.
    """

    top: Array
    exps: Array
    moment: Array
    label: Array
    total: Array
    best: Array


def vocab_names(
    w: Any, bias: Any, *, vocab_axis: int, requested: str | Names | None
) -> tuple[Names, int]:
    """Returns the mesh axes of the vocabulary, and the number of its shards.

    Args:
        w: Weights of the head.
        bias: Bias [V], or None.
        vocab_axis: Axis of w for the vocabulary.
        requested: Axes named by a caller inside of `jax.shard_map`. There w is one shard. None: the
            axes of an Explicit mesh, by the type of w, which has the whole shape.

    Raises:
        ValueError: A requested name is no axis of a `jax.shard_map` with its default checks, or w
            does not vary over it.
    """
    if requested is None:
        axes = [(w, vocab_axis), *([] if bias is None else [(bias, 0)])]
        for sharding, axis in ((jax.typeof(array).sharding, axis) for array, axis in axes):
            if sharding.spec[axis] is not None:
                return (names := _names(sharding.spec[axis])), _shards(sharding.mesh, names)
        return (), 1
    names = _names(requested)
    mesh = jax.sharding.get_abstract_mesh()
    if not names or not set(names) <= set(mesh.manual_axes):
        raise ValueError(
            "vocab_mesh_axes must name axes of the jax.shard_map around the call, "
            f"{list(mesh.manual_axes)}, got vocab_mesh_axes={requested!r}. Leave it out on an "
            "Explicit mesh, where the type of w says it."
        )
    if not set(names) <= varies(lax.axis_index(names)):
        raise ValueError(
            "vocab_mesh_axes needs the default checks of jax.shard_map, from which JAX derives "
            f"gradients, got vocab_mesh_axes={requested!r} with check_vma=False. Leave check_vma "
            "out."
        )
    for name, array in (("w", w), ("bias", bias)):
        if array is not None and not set(names) <= varies(array):
            raise ValueError(
                f"{name} must be split over vocab_mesh_axes, got {name} equal on all devices of "
                f"vocab_mesh_axes={requested!r}. Name these axes in its in_specs, or leave "
                "vocab_mesh_axes out."
            )
    return names, _shards(mesh, names)


def alike(names: Names, arrays: Sequence[Any], *, split: tuple[int, ...]) -> list[Any]:
    """Returns `arrays` that vary alike, but over `names` only w and bias.

    Args:
        names: Mesh axes of the vocabulary.
        arrays: x, then others. None stays None.
        split: Indices of the arrays with a vocabulary.
    """
    axes = frozenset().union(*(varies(a) for a in arrays if a is not None))
    common, whole = axes - set(names), axes | set(names)
    alike = []
    for i, array in enumerate(arrays):
        if array is not None:
            array = vary_over(whole if i in split else common, array)
            if i > 0 and i not in split:
                array = _same(names, array)
        alike.append(array)
    return alike


def _same(names: Names, array: Array) -> Array:
    """Returns the first device's array on all, if it may differ, as after a gather of tokens."""
    over = tuple(name for name in names if name in varies(array))
    if not over:
        return array
    dtype = array.dtype
    array = array.astype(jnp.int32) if dtype == jnp.bool_ else array
    first = jnp.where(lax.axis_index(over) == 0, array, jnp.zeros((), array.dtype))
    return lax.psum(first, over).astype(dtype)


def first_column(names: Names, columns: Any) -> Array | int:
    """Returns the id of a device's first column; each has `columns`."""
    return lax.axis_index(names) * columns if names else 0


def combine(names: Names, sums: ColumnSums, *, columns: Any) -> ColumnSums:
    """Combines the sums of all devices of `names`: columns, then indices, of the whole vocabulary.

    Args:
        names: Mesh axes of the vocabulary. Empty: `sums` are returned.
        sums: Sums over a device's columns.
        columns: Number of a device's columns.
    """
    if not names:
        return sums
    top = lax.pmax(sums.top, names)
    shrink = jnp.exp(sums.top - jnp.where(top == -jnp.inf, 0, top))  # -inf - -inf would be NaN
    each = (sums.exps * shrink, sums.moment * shrink, sums.label, sums.total)
    exps, moment, label, total = lax.psum(jnp.stack(each), names)
    last = columns * lax.axis_size(names) - 1
    best = jnp.where(sums.top == top, sums.best + first_column(names, columns), last)
    return ColumnSums(top, exps, moment, label, total, lax.pmin(best, names))


def sum_over(names: Names, gradient: Array, x: Array) -> Array:
    """Sums the gradient of x over devices on which x is equal.

    Args:
        names: Mesh axes of the vocabulary.
        gradient: A device's share of the gradient.
        x: Inputs of the head. If they vary over an axis, the gradient is each device's own there.
    """
    over = tuple(name for name in names if name not in varies(x))
    return lax.psum(gradient, over) if over else gradient


def _shards(mesh: Any, names: Names) -> int:
    return math.prod(mesh.shape[name] for name in names)


def _names(spec: str | Names) -> Names:
    return (spec,) if isinstance(spec, str) else tuple(spec)
