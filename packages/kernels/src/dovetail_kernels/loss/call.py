# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a loss, and the abstract facts of a call."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import dispatch
from dovetail_kernels.arrays import check_arrays, known
from dovetail_kernels.loss.shards import vocab_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossCall(dispatch.Call):
    """Abstract facts of a call: shapes, dtype, options and device.

    Attributes:
        operation: Name of the operation, for messages.
        tokens: Number of tokens M.
        width: Width D of the head's input.
        vocabulary: Vocabulary size V, of all shards.
        columns: Columns of the vocabulary on a device.
        vocab_mesh_axes: Mesh axes over which the vocabulary is split. An implementation combines
            its columns over them, or refuses.
        dtype: Dtype of x and w.
        bias: Whether there is a bias.
        vocab_axis: Axis of w for the vocabulary.
        soft_cap: Bound of the logits, or None.
        temperature: Divisor of the logits.
        smoothing: Label smoothing.
        z_loss: Factor of lse^2.
        budget: Bytes for the tiles, or None for the default.
        device: Device of the call.
    """

    _FACTS = frozenset(
        ("operation", "tokens", "width", "vocabulary", "columns", "dtype", "vocab_axis", "device")
    )

    operation: str
    tokens: Any
    width: Any
    vocabulary: Any
    columns: Any
    vocab_mesh_axes: tuple[str, ...]
    dtype: jnp.dtype
    bias: bool
    vocab_axis: int
    soft_cap: float | None
    temperature: float
    smoothing: float
    z_loss: float
    budget: int | None
    device: dispatch.Device

    @property
    def options(self) -> frozenset[str]:
        """Names of the options in use. A temperature of 1 is not in use."""
        return super().options - ({"temperature"} if self.temperature == 1 else set())


class LossInputs(NamedTuple):
    """The arrays of a loss, as in `linear_cross_entropy`.

    `run(call, inputs)` returns the four sums of `CE` for `linear_cross_entropy`, and
    (logprob [M], entropy [M]) for `linear_logprobs`.

    Attributes:
        x: Inputs of the head.
        w: Weights of the head, as `call.vocab_axis` says.
        bias: Added to the logits, or None.
        labels: Token ids. Under a trace they may be out of range; such a token's loss is NaN.
        where: Weight per token, or None.
    """

    x: jax.Array
    w: jax.Array
    bias: jax.Array | None
    labels: jax.Array
    where: jax.Array | None


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype for sums of products: float32, or float64 for float64."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def check(
    operation: str,
    x: Any,
    w: Any,
    labels: Any,
    *,
    where: Any,
    bias: Any,
    vocab_axis: int,
    vocab_mesh_axes: str | tuple[str, ...] | None,
    soft_cap: float | None,
    temperature: float = 1.0,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    budget: int | None,
) -> LossCall:
    """Checks the arguments and returns the facts of the call.

    Args:
        operation: Name of the operation, for messages.
        x, w, labels, where, bias: Arrays, or `jax.ShapeDtypeStruct`.
        vocab_axis, vocab_mesh_axes, soft_cap, temperature, smoothing, z_loss, budget: Options of
            the operation.

    Raises:
        ValueError: Shapes do not fit, or an option or a label is out of range.
        TypeError: A dtype is wrong.
    """
    check_arrays(operation, x=x, w=w, labels=labels, where=where, bias=bias)
    if vocab_axis not in (0, 1):
        raise ValueError(
            f"vocab_axis must be 1 for w [D, V] or 0 for w [V, D], got vocab_axis={vocab_axis!r}. "
            "Use 0 for tied embeddings."
        )
    tokens, width, columns = _shapes(operation, x, w, vocab_axis)
    for name, array, size in (
        ("labels", labels, tokens),
        ("where", where, tokens),
        ("bias", bias, columns),
    ):
        if array is not None and array.shape != (size,):
            letter = "V" if name == "bias" else "M"
            raise ValueError(
                f"{name} must be [{letter}] = [{size}], got {name}.shape={array.shape}. Use "
                f"{name}.reshape(-1) if it has more axes."
            )
    _dtypes(x, w, labels, where, bias)
    _options(soft_cap, temperature, smoothing, z_loss, budget)
    names, shards = vocab_names(w, bias, vocab_axis=vocab_axis, requested=vocab_mesh_axes)
    vocabulary = columns * shards
    if vocab_mesh_axes is None:  # the type of w has the whole shape
        vocabulary, columns = columns, columns // shards
    _labels_in_range(labels, where, vocabulary)
    return LossCall(
        operation=operation,
        tokens=tokens,
        width=width,
        vocabulary=vocabulary,
        columns=columns,
        vocab_mesh_axes=names,
        dtype=jax.dtypes.canonicalize_dtype(x.dtype),  # float64 only under x64
        bias=bias is not None,
        vocab_axis=vocab_axis,
        soft_cap=soft_cap,
        temperature=temperature,
        smoothing=smoothing,
        z_loss=z_loss,
        budget=budget,
        device=dispatch.device(x, w),
    )


def _shapes(operation: str, x: Any, w: Any, vocab_axis: int) -> tuple[Any, Any, Any]:
    if len(x.shape) != 2 or len(w.shape) != 2:
        raise ValueError(
            f"{operation} needs x [M, D] and w of two axes, got x.shape={x.shape} and "
            f"w.shape={w.shape}. Use x.reshape(-1, x.shape[-1]), and labels.reshape(-1)."
        )
    width, vocabulary = w.shape[1 - vocab_axis], w.shape[vocab_axis]
    if x.shape[1] != width:
        axes = "[D, V]" if vocab_axis == 1 else "[V, D]"
        raise ValueError(
            f"the last axis of x [M, D] must be D of w {axes}, got x.shape={x.shape} and "
            f"w.shape={w.shape}. Use vocab_axis={1 - vocab_axis} if w is the other way round."
        )
    if vocabulary == 0 or width == 0:
        raise ValueError(
            f"w must have a vocabulary and a width, got w.shape={w.shape}. Use a head with V >= 1 "
            "and D >= 1."
        )
    return x.shape[0], width, vocabulary


def _dtypes(x: Any, w: Any, labels: Any, where: Any, bias: Any) -> None:
    allowed = ("bfloat16", "float32", "float64")
    if x.dtype != w.dtype or jnp.dtype(x.dtype).name not in allowed:
        raise TypeError(
            f"x and w must have one dtype of {', '.join(allowed)}, got x.dtype={x.dtype} and "
            f"w.dtype={w.dtype}. Use .astype on one: float16 does not hold sums over tokens."
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"labels must be integers, got labels.dtype={labels.dtype}. Use .astype(jnp.int32)."
        )
    if where is not None and not (
        jnp.issubdtype(where.dtype, jnp.bool_) or jnp.issubdtype(where.dtype, jnp.floating)
    ):
        raise TypeError(
            f"where must be bool or floating weights, got where.dtype={where.dtype}. Use "
            "where != 0."
        )
    if bias is not None and not jnp.issubdtype(bias.dtype, jnp.floating):
        raise TypeError(
            f"bias must be floating, got bias.dtype={bias.dtype}. Use .astype(w.dtype)."
        )


def _options(
    soft_cap: float | None,
    temperature: float,
    smoothing: float,
    z_loss: float,
    budget: int | None,
) -> None:
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(
            f"soft_cap must be positive and finite, got soft_cap={soft_cap!r}. Use None for no cap."
        )
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature must be positive and finite, got temperature={temperature!r}. Use 1.0 "
            "for the model's own probabilities."
        )
    if not 0 <= smoothing < 1:
        raise ValueError(
            f"smoothing must be in [0, 1), got smoothing={smoothing!r}. Use 0.0 for none."
        )
    if not 0 <= z_loss < math.inf:
        raise ValueError(
            f"z_loss must be 0 or positive and finite, got z_loss={z_loss!r}. Use 0.0 for none."
        )
    if budget is not None and budget <= 0:
        raise ValueError(
            f"budget must be a positive number of bytes, got budget={budget!r}. Leave it out for "
            "the default."
        )


def _labels_in_range(labels: Any, where: Any, vocabulary: Any) -> None:
    """Checks the labels if the arrays are concrete. Under a trace a wrong label gives NaN."""
    values, counts = known(labels), known(where)
    if values is None or (where is not None and counts is None):
        return
    wrong = (values < 0) | (values >= vocabulary)
    if counts is not None:
        wrong &= counts != 0
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(
            f"labels must be in [0, V) = [0, {vocabulary}) where they count, got labels[{i}]="
            f"{values[i]}. Use where=(labels != {values[i]}) if it marks what does not count."
        )
