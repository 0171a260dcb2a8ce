# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of a call of a loss: checks of its arguments, its facts and its implementations."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import dispatch
from dovetail_kernels.arrays import check_arrays, known
from dovetail_kernels.loss.call import LossCall
from dovetail_kernels.loss.implementations import CROSS_ENTROPY, LOG_PROBABILITIES, tiles_of
from dovetail_kernels.loss.shards import vocab_names

_IMPLEMENTATIONS = {
    "linear_cross_entropy": CROSS_ENTROPY,
    "linear_logprobs": LOG_PROBABILITIES,
}


def _plan(
    operation: str,
    x: Any,
    w: Any,
    labels: Any,
    *,
    where: Any = None,
    bias: Any = None,
    soft_cap: float | None = None,
    temperature: float = 1.0,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    vocab_axis: int = 1,
    vocab_mesh_axes: str | tuple[str, ...] | None = None,
    budget: int | None = None,
    impl: dispatch.Impl | None = None,
) -> dispatch.Plan[LossCall]:
    """Returns the plan of an operation for these arguments. Nothing runs.

    Args:
        operation: Name of the operation.
        x, w, labels, where, bias: Arrays, or `jax.ShapeDtypeStruct`.
        soft_cap, temperature, smoothing, z_loss, vocab_axis, vocab_mesh_axes, budget, impl: Options
            of the operation. Those of the other one stay at their default.

    Raises:
        ValueError: Shapes do not fit, an option or a label is out of range, or the budget is too
            small.
        TypeError: A dtype is wrong.
    """
    check_arrays(operation, x=x, w=w, labels=labels, where=where, bias=bias)
    if vocab_axis not in (0, 1):
        raise ValueError(
            f"vocab_axis must be 1 for w [D, V] or 0 for w [V, D], got vocab_axis={vocab_axis!r}. "
            "Use 0 for tied embeddings."
        )
    tokens, width, columns = _shapes(operation, x, w, vocab_axis)
    _vectors(tokens, columns, labels=labels, where=where, bias=bias)
    _dtypes(x, w, labels, where, bias)
    _options(soft_cap, temperature, smoothing, z_loss, budget)
    names, shards = vocab_names(w, bias, vocab_axis=vocab_axis, requested=vocab_mesh_axes)
    vocabulary = columns * shards
    if vocab_mesh_axes is None:  # the type of w has the whole shape
        vocabulary, columns = columns, columns // shards
    _labels_in_range(labels, where, vocabulary)
    call = LossCall(
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
    tiles_of(call, tokens)  # raises if the budget holds no tile
    return dispatch.Plan(
        operation=operation,
        call=call,
        device=call.device,
        implementations=_IMPLEMENTATIONS[operation],
        impl=impl,
        arrays=(x, w),
    )


plan_linear_cross_entropy = functools.partial(_plan, "linear_cross_entropy")
plan_linear_logprobs = functools.partial(_plan, "linear_logprobs")


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


def _vectors(tokens: Any, columns: Any, **vectors: Any) -> None:
    for name, array in vectors.items():
        letter, size = ("V", columns) if name == "bias" else ("M", tokens)
        if array is not None and array.shape != (size,):
            raise ValueError(
                f"{name} must be [{letter}] = [{size}], got {name}.shape={array.shape}. Use "
                f"{name}.reshape(-1) if it has more axes."
            )


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
