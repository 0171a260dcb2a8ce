# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A quantized kernel in the place of a float one, and the operations that a module calls with it.

NNX's layers hold their product, and the promotion of dtypes before it, as attributes. So a site is
quantized by three assignments: its kernel, its product, its promotion. Class, paths, names of axes
and the module's own code stay, and nothing of JAX is patched.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes import dequantize, nbytes
from dovetail_quant.matmul.api import Lookup, Matmul
from dovetail_quant.spec import Spec


class QuantizedParam(nnx.Param):
    """A parameter whose value is a `Kernel`: codes, which no gradient moves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
    """Which axes of a kernel count matrices, and which of them are contracted; the rest are given.

    Folded, a kernel is w[K, N], or [B, K, N] if it has axes that count matrices.
    """

    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    batch: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        used = (*self.batch, *self.inputs)
        return tuple(axis for axis in range(len(self.shape)) if axis not in used)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(matrices, K, N)."""
        groups = self.batch, self.inputs, self.outputs
        batch, inputs, outputs = (math.prod(self.shape[a] for a in group) for group in groups)
        return batch, inputs, outputs

    def fold(self, w: Float[Array, "..."]) -> Float[Array, "*b K N"]:
        order = (*self.batch, *self.inputs, *self.outputs)
        sizes = self.sizes if self.batch else self.sizes[1:]
        return w.transpose(order).reshape(sizes)

    def unfold(self, w: Float[Array, "*b K N"]) -> Float[Array, "..."]:
        """The kernel whose `fold` is `w`."""
        order = (*self.batch, *self.inputs, *self.outputs)
        moved = w.reshape([self.shape[axis] for axis in order])
        return moved.transpose([order.index(axis) for axis in range(len(self.shape))])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Kernel:
    """Codes as a product reads them. A pytree: it can be jitted over, placed and saved.

    prepared: by `matmul.prepare`. scale: [K], or [B, K], by which x is divided before the product,
    or None (AWQ and SmoothQuant). dtype: of the kernel that it stands for.
    """

    prepared: Any
    scale: Any
    axes: Axes = dataclasses.field(metadata={"static": True})
    spec: Spec = dataclasses.field(metadata={"static": True})
    matmul: Matmul = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.axes.shape

    @property
    def ndim(self) -> int:
        return len(self.axes.shape)

    @property
    def size(self) -> int:
        return math.prod(self.axes.shape)

    @property
    def nbytes(self) -> int:
        """Of the codes and scales, four bits as half a byte; arrays may be abstract."""
        extra = 0 if self.scale is None else self.scale.size * self.scale.dtype.itemsize
        return nbytes(jax.eval_shape(Kernel.codes, self)) + extra

    def __getitem__(self, index: Any) -> "Kernel":
        """Itself for `[...]`, as a module asks a variable for all of its value."""
        if index is not Ellipsis:
            raise TypeError(
                f"a quantized kernel is read as a whole, got index {index!r}; write [...], or "
                ".dequantize() for a float array to index"
            )
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies ask of one that has no fields yet
            raise AttributeError(name)
        raise AttributeError(
            f"a quantized kernel is multiplied by, and is no array, got .{name} asked of {self}; "
            "write .dequantize() for a float array, or leave this site out of the plan"
        )

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError(
            f"a quantized kernel is multiplied by, and is no array, got {self} where one is "
            "needed; write .dequantize() for a float array, or leave this site out of the plan"
        )

    def __repr__(self) -> str:
        group = self.spec.group or self.axes.sizes[1]
        return f"Kernel({list(self.shape)} as {self.spec.weight} in groups of {group})"

    def astype(self, dtype: Any) -> "Kernel":
        """Itself: the product has the dtype of x."""
        return self

    def codes(self) -> QArray:
        """The canonical codes [K, N], or [B, K, N]."""
        read = self.matmul.codes
        return jax.vmap(read)(self.prepared) if self.axes.batch else read(self.prepared)

    def dequantize(self) -> Float[Array, "..."]:
        """The float kernel that it stands for, of its shape and dtype."""
        w = dequantize(self.codes())
        if self.scale is not None:
            w = w / self.scale[..., None]
        return self.axes.unfold(w).astype(self.dtype)

    def product(self, x: Float[Array, "*rows K"]) -> Float[Array, "*rows N"]:
        """x w, of one matrix."""
        return _product(self, x)

    def rows(self, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """The rows of an embedding of those indices, in `dtype`; NaN for those that it has not."""
        if not isinstance(self.matmul, Lookup):
            raise TypeError(
                "an embedding needs a product with `take`, got "
                f"{type(self.matmul).__name__}; leave embeddings out of the plan, or write "
                "apply(model, plan) without matmul="
            )
        return _rows(self, index)


# Compiled also where a model runs op by op: what loops inside would be compiled at every call.
@jax.jit
def _product(kernel: Kernel, x: Array) -> Array:
    return kernel.matmul(_divided(x, kernel.scale), kernel.prepared)


@jax.jit
def _rows(kernel: Kernel, index: Array) -> Array:
    product: Any = kernel.matmul
    found = product.take(kernel.prepared, index)
    return _divided(found, kernel.scale).astype(kernel.dtype)


def _divided(x: Array, scale: Array | None) -> Array:
    if scale is None:
        return x
    return (x / scale.reshape(*(1,) * (x.ndim - 1), -1)).astype(x.dtype)


def dot_general(
    x: Float[Array, "..."],
    kernel: Kernel,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Float[Array, "..."]:
    """`jax.lax.dot_general` with a quantized kernel on the right, which is contracted as planned.

    precision: not read; products accumulate in float32 at least.
    """
    (ours, theirs), batch = dimension_numbers
    if tuple(map(len, batch)) != (0, 0) or set(theirs) != set(kernel.axes.inputs):
        raise ValueError(
            f"a quantized kernel is contracted over its axes {kernel.axes.inputs}, got "
            f"dimension_numbers={dimension_numbers}; leave this site out of the plan"
        )
    order = [ours[list(theirs).index(axis)] for axis in kernel.axes.inputs]
    rest = [axis for axis in range(x.ndim) if axis not in order]
    rows = x.transpose([*rest, *order]).reshape(*(x.shape[axis] for axis in rest), -1)
    y = kernel.product(rows)
    y = y.reshape(*rows.shape[:-1], *(kernel.shape[axis] for axis in kernel.axes.outputs))
    if preferred_element_type is not None:
        y = y.astype(preferred_element_type)
    return y if out_sharding is None else jax.sharding.reshard(y, out_sharding)


def einsum(
    equation: str, x: Float[Array, "..."], kernel: Kernel, **options: Any
) -> Float[Array, "..."]:
    """`jnp.einsum` of x and a quantized kernel, as `nnx.Einsum` calls it."""
    left, right, out = split_equation(equation)
    inputs = [right[axis] for axis in kernel.axes.inputs]
    contracted = [left.index(letter) for letter in inputs], kernel.axes.inputs
    y = dot_general(x, kernel, (contracted, ((), ())), **options)
    letters = [c for c in left if c not in inputs] + [right[a] for a in kernel.axes.outputs]
    return y.transpose([letters.index(letter) for letter in out])


def split_equation(equation: str) -> tuple[str, str, str]:
    """The letters of x, of the kernel, and of the result."""
    operands, out = equation.replace(" ", "").split("->")
    left, right = operands.split(",")
    return left, right, out


def ragged_dot(
    x: Float[Array, "m K"], kernel: Kernel, sizes: Any, **options: Any
) -> Float[Array, "m N"]:
    """`jax.lax.ragged_dot`: each row by the matrix of its group; rows lie group by group.

    One matrix after the other multiplies all rows, and a row keeps the product of its own: as many
    operations as XLA's own on a CPU, and no float copy of the matrices.
    """
    return _ragged(x, kernel, sizes)


@jax.jit
def _ragged(x: Array, kernel: Kernel, sizes: Array) -> Array:
    ends = jnp.cumsum(sizes)
    row = jnp.arange(len(x), dtype=ends.dtype)[:, None]
    first = ends - sizes

    def add(y: Array, one: Any) -> tuple[Array, None]:
        prepared, scale, begin, end = one
        product = kernel.matmul(_divided(x, scale), prepared)
        return jnp.where((row >= begin) & (row < end), product, y), None

    zeros = jnp.zeros((len(x), kernel.axes.sizes[2]), x.dtype)
    stacked = kernel.prepared, kernel.scale, first, ends
    return jax.lax.scan(add, zeros, stacked)[0]


@dataclasses.dataclass(frozen=True)
class Promote:
    """The promotion that a module had, which sees a quantized kernel as the float one it was."""

    before: Callable[..., Any]

    def __call__(self, args: Sequence[Any], **options: Any) -> tuple[Any, ...]:
        stand_ins = [jnp.zeros((), x.dtype) if isinstance(x, Kernel) else x for x in args]
        promoted = self.before(stand_ins, **options)
        return tuple(x if isinstance(x, Kernel) else y for x, y in zip(args, promoted, strict=True))
