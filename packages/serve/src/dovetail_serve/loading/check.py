# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arrays of a call, before any work: names, dtypes, shapes and numbers of rows."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from dovetail_serve.errors import ExecutionError, RequestError
from dovetail_serve.types import BYTES, HostCall, HostFunction, Signature, Tensor, numpy_dtype

_ARRAYS = (np.ndarray, jax.Array)


def check_inputs(signature: Signature, inputs: Mapping[str, Any]) -> int | None:
    """Checks the inputs of a call.

    Dtypes must be equal: a silent cast would hide that a caller sends float64 or other integers.

    Args:
        signature: `model.signature`, or the signature of the program alone.
        inputs: Arrays by name.

    Returns:
        The number of rows, 0 included; None without a batch axis.

    Raises:
        RequestError: A name, a dtype or a shape differs. The message gives the expected and the
            received one.
    """
    reason, rows = _compare(signature.inputs, inputs, "input")
    if reason:
        raise RequestError(reason)
    return rows


def check_results(
    function: HostFunction, arrays: Any, rows: int | None, expected: Mapping[str, Tensor]
) -> None:
    """Checks the arrays returned by a host function.

    Args:
        function: The host function.
        arrays: Its result.
        rows: Number of rows of the call; None without a batch axis.
        expected: Tensors to be returned, by name.

    Raises:
        ExecutionError: It has returned something else.
    """
    owner = f"the host function {function.name!r}"
    if not isinstance(arrays, Mapping):
        raise ExecutionError(
            f"{owner} must return a dictionary of arrays, got a {type(arrays).__name__}; "
            f"return {{{next(iter(expected), '')!r}: array}}"
        )
    reason, returned = _compare(expected, arrays, "array")
    if not reason and returned != rows:
        reason = f"rows must stay {rows}, got {returned}; return one row for each row that it takes"
    if reason:
        raise ExecutionError(f"{owner} has returned other arrays than the bundle says: {reason}")


def _compare(
    tensors: Mapping[str, Tensor], arrays: Mapping[str, Any], kind: str
) -> tuple[str, int | None]:
    """Returns the reason why arrays do not fit tensors, or "", and the number of rows."""
    if arrays.keys() != tensors.keys():
        return _names(tensors, arrays, kind), None
    rows = None
    for name, tensor in tensors.items():
        array = arrays[name]
        if not isinstance(array, _ARRAYS):
            dtype = "object" if tensor.dtype == BYTES else tensor.dtype
            return (
                f"{kind} {name!r} must be an array, {_text(tensor)}, got a {type(array).__name__}; "
                f"write np.asarray({name}, {dtype!r})"
            ), None
        if not isinstance(array, np.ndarray) and isinstance(array, Tracer):
            return (
                f"{kind} {name!r} must have values, got a tracer; call the model outside of "
                "jax.jit, jax.vmap and jax.grad, or by jax.pure_callback"
            ), None
        if array.dtype != numpy_dtype(tensor.dtype):
            return _mismatch(name, tensor, array, kind), None
        shape, first = array.shape, 0
        if tensor.batched:
            first = 1
            if rows is None and shape:
                rows = shape[0]
        if len(shape) != len(tensor.shape) or shape[first:] != tensor.shape[first:]:
            return _mismatch(name, tensor, array, kind), None
        if first and shape[0] != rows:
            return _unequal(tensors, arrays, kind), None
        if tensor.dtype == BYTES and not all(
            type(item) is bytes for item in np.asarray(array).flat
        ):
            return _mismatch(name, tensor, array, kind), None
    return "", rows


def _names(tensors: Mapping[str, Tensor], arrays: Mapping[str, Any], kind: str) -> str:
    missing = [
        f"add {name}, {_text(tensors[name])}" for name in sorted(tensors.keys() - arrays.keys())
    ]
    unknown = [f"leave out {str(name)[:100]!r}" for name in sorted(arrays.keys() - tensors.keys())]
    return (
        f"{kind}s must be named {', '.join(tensors)}, got "
        f"{', '.join(map(str, arrays))[:200] or 'none'}; {'; '.join((missing + unknown)[:4])}"
    )


def _mismatch(name: str, tensor: Tensor, array: Any, kind: str) -> str:
    """Returns the message for another dtype or shape, with the call to write instead."""
    expected = numpy_dtype(tensor.dtype)
    if array.dtype != expected and tensor.dtype == BYTES:
        advice = f"write np.array([...], object) with a bytes object for each text of {name}"
    elif array.dtype != expected:
        advice = f"write {name}.astype({tensor.dtype!r})"
    elif tensor.batched and array.shape == tensor.shape[1:]:
        advice = f"write {name}[None] for one row"
    elif tensor.dtype == BYTES and len(array.shape) == len(tensor.shape):
        advice = "write text.encode() for each item that is not of class bytes"
    elif tensor.batched:
        advice = f"give any number of rows of shape {tensor.shape[1:]}"
    else:
        advice = f"give an array of shape {tensor.shape}"
    # The other byte order has the same name; its code, ">f4", tells it apart.
    dtype = array.dtype.str if array.dtype.name == expected.name else array.dtype.name
    came = f"{array.dtype.name if array.dtype == expected else dtype}{list(array.shape)}"
    return f"{kind} {name!r} must be {_text(tensor)}, got {came}; {advice}"


def _unequal(tensors: Mapping[str, Tensor], arrays: Mapping[str, Any], kind: str) -> str:
    rows = {name: arrays[name].shape[:1] for name in tensors}
    came = ", ".join(f"{name}={size[0] if size else 'none'}" for name, size in rows.items())
    return f"{kind}s must have equal numbers of rows, got {came}; send rows that belong together"


def _text(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def given_function(
    function: HostFunction | None, functions: Mapping[str, HostCall]
) -> HostCall | None:
    """Returns the caller's host function of a bundle, None for none; raises if it is not given."""
    if function is None:
        return None
    if function.name not in functions:
        raise ValueError(
            f"the bundle needs the host function {function.name!r}, got "
            f"{', '.join(sorted(functions)) or 'none'}; give f(arrays, assets) -> arrays in "
            f"functions=, or by --function {function.name}=MODULE:F of the command"
        )
    return functions[function.name]
