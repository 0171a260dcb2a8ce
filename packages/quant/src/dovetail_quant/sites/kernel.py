# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A quantized kernel in the place of a float one, and the operations that use it.

NNX's layers hold their product, and the dtype promotion before it, as attributes. Quantizing a site
therefore takes three assignments: its kernel, its product, its promotion. Class, paths, axis names
and the module's code stay, and nothing of JAX is patched.
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

from dovetail_quant.codes.codes import dequantize, nbytes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.api import Lookup, Matmul


class QuantizedParam(nnx.Param):
    """A parameter whose value is a `Kernel`: codes, without gradient."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
    """The role of each axis of a kernel.

    Folded, a kernel is w[K, N], or [B, K, N] if it has batch axes.

    Attributes:
        shape: Shape of the kernel.
        inputs: Contracted axes.
        batch: Axes that count matrices. The remaining axes are outputs.
    """

    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    batch: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """The output axes."""
        used = (*self.batch, *self.inputs)
        return tuple(axis for axis in range(len(self.shape)) if axis not in used)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(matrices, K, N)."""
        groups = self.batch, self.inputs, self.outputs
        batch, inputs, outputs = (math.prod(self.shape[a] for a in group) for group in groups)
        return batch, inputs, outputs

    def fold(self, w: Float[Array, "..."]) -> Float[Array, "*b K N"]:
        """Returns w[K, N] or w[B, K, N]."""
        order = (*self.batch, *self.inputs, *self.outputs)
        sizes = self.sizes if self.batch else self.sizes[1:]
        return w.transpose(order).reshape(sizes)

    def unfold(self, w: Float[Array, "*b K N"]) -> Float[Array, "..."]:
        """Inverts `fold`."""
        order = (*self.batch, *self.inputs, *self.outputs)
        moved = w.reshape([self.shape[axis] for axis in order])
        return moved.transpose([order.index(axis) for axis in range(len(self.shape))])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Kernel:
    """Codes in the form that a product reads. A pytree: it can be jitted over, placed and saved.

    Attributes:
        prepared: The result of `matmul.prepare`.
        scale: Divisor of x before the product, [K] or [B, K], or None (AWQ and SmoothQuant).
        axes: Axes of the float kernel.
        spec: The codes.
        matmul: The product.
        dtype: Dtype of the float kernel.
    """

    prepared: Any
    scale: Any
    axes: Axes = dataclasses.field(metadata={"static": True})
    spec: Spec = dataclasses.field(metadata={"static": True})
    matmul: Matmul = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the float kernel."""
        return self.axes.shape

    @property
    def ndim(self) -> int:
        """Number of axes of the float kernel."""
        return len(self.axes.shape)

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.axes.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales, four bits as half a byte; arrays may be abstract."""
        extra = 0 if self.scale is None else self.scale.size * self.scale.dtype.itemsize
        return nbytes(jax.eval_shape(Kernel.codes, self)) + extra

    def __getitem__(self, index: Any) -> "Kernel":
        """Returns itself for `[...]`: a module reads a variable's value this way."""
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
        """Returns itself: the product has the dtype of x."""
        return self

    def codes(self) -> QArray:
        """Returns the canonical codes [K, N], or [B, K, N]."""
        read = self.matmul.codes
        return jax.vmap(read)(self.prepared) if self.axes.batch else read(self.prepared)

    def dequantize(self) -> Float[Array, "..."]:
        """Returns the float kernel, with its shape and dtype."""
        w = dequantize(self.codes())
        if self.scale is not None:
            w = w / self.scale[..., None]
        return self.axes.unfold(w).astype(self.dtype)

    def product(self, x: Float[Array, "*rows K"]) -> Float[Array, "*rows N"]:
        """Returns x w for one matrix."""
        return _product(self, x)

    def rows(self, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """Returns the rows of an embedding, in `dtype`; NaN for an index outside."""
        if not isinstance(self.matmul, Lookup):
            raise TypeError(
                "an embedding needs a product with `take`, got "
                f"{type(self.matmul).__name__}; leave embeddings out of the plan, or write "
                "apply(model, plan, matmul='auto')"
            )
        return _rows(self, index)


# Compiled also where a model runs op by op: what loops inside would be compiled at every call.
@jax.jit
def _product(kernel: Kernel, x: Array) -> Array:
    return kernel.matmul(_divided(x, kernel.scale), kernel.prepared)


@jax.jit
def _rows(kernel: Kernel, index: Array) -> Array:
    product: Any = kernel.matmul
    rows = product.take(kernel.prepared, index)
    return _divided(rows, kernel.scale).astype(kernel.dtype)


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
    """`jax.lax.dot_general` with a quantized kernel on the right, contracted as planned.

    Args:
        x: Activations.
        kernel: The quantized kernel.
        dimension_numbers: As for `jax.lax.dot_general`.
        precision: Not read; products accumulate in float32 or wider.
        preferred_element_type: Dtype of the result. Default: that of x.
        out_sharding: As for `jax.lax.dot_general`.
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
    """`jnp.einsum` of x and a quantized kernel, as `nnx.Einsum` calls it.

    Args:
        equation: As for `jnp.einsum`.
        x: Activations.
        kernel: The quantized kernel.
        options: As for `jnp.einsum`.
    """
    left, right, out = split_equation(equation)
    inputs = [right[axis] for axis in kernel.axes.inputs]
    contracted = [left.index(letter) for letter in inputs], kernel.axes.inputs
    y = dot_general(x, kernel, (contracted, ((), ())), **options)
    letters = [c for c in left if c not in inputs] + [right[a] for a in kernel.axes.outputs]
    return y.transpose([letters.index(letter) for letter in out])


def split_equation(equation: str) -> tuple[str, str, str]:
    """Returns the letters of x, of the kernel, and of the result."""
    operands, out = equation.replace(" ", "").split("->")
    left, right = operands.split(",")
    return left, right, out


def ragged_dot(
    x: Float[Array, "m K"], kernel: Kernel, sizes: Any, **options: Any
) -> Float[Array, "m N"]:
    """`jax.lax.ragged_dot`: each row times the matrix of its group; rows are sorted by group.

    Multiplies all rows by one matrix after the other and selects. XLA on a CPU does as many
    operations; this needs no float copy of the matrices.

    Args:
        x: Rows, sorted by group.
        kernel: One matrix per group.
        sizes: Rows per group, i32[B].
        options: As for `jax.lax.ragged_dot`.
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
    """The module's dtype promotion, applied as if the kernel were still float."""

    before: Callable[..., Any]

    def __call__(self, args: Sequence[Any], **options: Any) -> tuple[Any, ...]:
        stand_ins = [jnp.zeros((), x.dtype) if isinstance(x, Kernel) else x for x in args]
        promoted = self.before(stand_ins, **options)
        return tuple(x if isinstance(x, Kernel) else y for x, y in zip(args, promoted, strict=True))
