# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The example: checked, and run as a loaded bundle runs it."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dovetail_serve.exporting.runner import Run
from dovetail_serve.types import BATCH, Tensor, numpy_dtype


def inputs_of(example: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the inputs of an example whose arrays have any number of rows.

    Raises TypeError if a value is not an array, and ValueError if one has no axis of rows.
    """
    inputs = {}
    for name, array in example.items():
        if not isinstance(array, np.ndarray | jax.Array):
            raise _no_array(name, array, "float32")
        if not array.ndim:
            raise ValueError(
                f"arrays of an example without inputs= must have an axis of rows, got {name!r} of "
                "shape=(); give it several rows along the first axis, or write inputs="
            )
        inputs[name] = Tensor((BATCH, *array.shape[1:]), array.dtype.name)
    return inputs


def check_example(
    inputs: Mapping[str, Tensor], example: Mapping[str, Any], *, batch_sizes: Sequence[int]
) -> dict[str, np.ndarray]:
    """Checks that the example fits `inputs`, and returns its arrays in host memory.

    Args:
        inputs: Tensors by name.
        example: Arrays by name.
        batch_sizes: Numbers of rows, ascending; empty without a batch axis.

    Returns:
        The arrays in the order of `inputs`.

    Raises:
        TypeError: A value is not an array.
        ValueError: A name, shape or dtype differs, or there is one row though a batch has several.
    """
    if example.keys() != inputs.keys():
        raise ValueError(
            f"the example must have an array for each input, got example={sorted(example)} for "
            f"inputs={sorted(inputs)}; write example={{{', '.join(f'{n!r}: ...' for n in inputs)}}}"
        )
    for name, tensor in inputs.items():
        _check_array(name, tensor, example[name])
    # Copies: the caller may change its arrays before the bundle is saved. JAX takes no other byte
    # order than the machine's.
    arrays = {
        name: np.array(example[name], numpy_dtype(tensor.dtype)) for name, tensor in inputs.items()
    }
    if not batch_sizes:
        return arrays
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"arrays of the example must have the same number of rows, got rows={counts}; cut them "
            "to the smallest"
        )
    rows, least = next(iter(counts.values())), 1 if batch_sizes[-1] == 1 else 2
    if rows < least:
        raise ValueError(
            f"the example must have at least {least} rows for batch_sizes={tuple(batch_sizes)}, "
            f"got rows={rows}; give different rows, to show that they do not depend on each other"
        )
    return arrays


def _check_array(name: str, tensor: Tensor, array: Any) -> None:
    if not isinstance(array, np.ndarray | jax.Array):
        raise _no_array(name, array, tensor.dtype)
    if array.dtype.name != tensor.dtype:
        raise ValueError(
            f"the example's {name!r} must have the dtype of the input, {tensor.dtype!r}, got "
            f"dtype={array.dtype.name!r}; write np.asarray(value, {tensor.dtype!r})"
        )
    shape = tensor.sized(array.shape[0] if array.ndim else None)
    if array.shape != shape:
        raise ValueError(
            f"the example's {name!r} must have the shape of the input, {tensor.shape}, got "
            f"shape={array.shape}; give it several rows along the first axis"
            if tensor.batched
            else f"the example's {name!r} must have the shape of the input, {tensor.shape}, got "
            f"shape={array.shape}; give an array of that shape"
        )


def _no_array(name: str, value: Any, dtype: str) -> TypeError:
    return TypeError(
        f"the example must hold arrays, got {name!r} of type {type(value).__name__}; write "
        f"np.asarray(value, {dtype!r})"
    )


def run_example(
    run: Run, example: Mapping[str, np.ndarray], *, batch_sizes: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns the outputs of the example, through the smallest sufficient number of rows.

    Its rows are padded with zeros up to that number, or split over several batches of the largest
    one.

    Args:
        run: The function, a `Runner`.
        example: Arrays by name, checked.
        batch_sizes: Numbers of rows, ascending; empty without a batch axis.

    Returns:
        The outputs by name, with the rows of the example.
    """
    if not batch_sizes:
        return run(example)
    rows = len(next(iter(example.values())))
    size = next((size for size in batch_sizes if size >= rows), batch_sizes[-1])
    batches = []
    for start in range(0, rows, size):
        count = min(size, rows - start)
        padded = {
            name: np.concatenate(
                [
                    array[start : start + count],
                    np.zeros((size - count, *array.shape[1:]), array.dtype),
                ]
            )
            for name, array in example.items()
        }
        batches.append({name: array[:count] for name, array in run(padded).items()})
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
