# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors as JSON: the `data` of an input or an output in the Open Inference Protocol.

Data are flat in C order, or nested exactly as the shape says. FP16 and BF16 are written as numbers.
Values are never changed: a number that a datatype cannot hold is refused instead of wrapped or
turned to infinity, and so is a Boolean among numbers.
"""

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dovetail_serve.errors import ExecutionError, RequestError
from dovetail_serve.serving.datatypes import OIP_BYTES, count, dtype_of, oip_name

# Datatypes with a form in JSON. The others hold what JSON has no numbers for.
_INTEGERS = frozenset(f"{sign}INT{bits}" for sign in ("U", "") for bits in (8, 16, 32, 64))
_FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})
# Codes of the module struct.
_PACKED = {"FP16": "e", "FP32": "f", "FP64": "d"}
_TYPES: dict[str, frozenset[type]] = {
    "BOOL": frozenset({bool}),
    OIP_BYTES: frozenset({str}),
    **dict.fromkeys(_INTEGERS, frozenset({int})),
    **dict.fromkeys(_FLOATS, frozenset({int, float})),
}
_NAMES = {bool: "a Boolean", str: "a string", int: "an integer", float: "a number with a point"}
_LIST = frozenset({list})
_EXAMPLES = {"BOOL": "true", OIP_BYTES: '"text"'}


def from_json(
    datatype: str, shape: Sequence[int], data: list[Any], *, tensor: str = "input"
) -> np.ndarray:
    """Returns the array that JSON data hold.

    Args:
        datatype: Name of the datatype in the protocol, such as "FP32".
        shape: Sizes of the axes.
        data: Values in C order, or lists nested as `shape` says.
        tensor: Name of the tensor, for messages.

    Returns:
        The array; an array of objects of class bytes, encoded in UTF-8, for BYTES.

    Raises:
        RequestError: The datatype is unknown or has no form in JSON, the data do not fit the shape,
            or a value does not fit the datatype.
    """
    dtype = dtype_of(datatype, tensor=tensor)
    types = _TYPES.get(datatype)
    if types is None:
        raise RequestError(
            f"tensor {tensor!r} must be sent as binary data, got JSON data of {datatype}; send its "
            "bytes after the JSON, with parameters.binary_data_size"
        )
    elements = count(shape, tensor=tensor)
    values = _flat(shape, elements, data, tensor)
    if not types.issuperset(map(type, values)):
        raise _mistyped(datatype, values, types, tensor)
    if datatype == OIP_BYTES:
        return _encoded(values, shape, tensor)
    if datatype in _FLOATS:
        return _floats(datatype, dtype, values, tensor).reshape(shape)
    try:
        return np.array(values, dtype).reshape(shape)
    except OverflowError:
        raise _out_of_range(datatype, values, dtype, tensor) from None


def to_json(array: np.ndarray, *, tensor: str = "output") -> np.ndarray | list[str]:
    """Returns flat values that orjson writes: an array, or texts for BYTES.

    Args:
        array: An output.
        tensor: Name of the tensor, for messages.

    Returns:
        Values in C order. BF16 becomes float32, which holds each of its values.

    Raises:
        ExecutionError: An element of BYTES is not bytes.
        RequestError: The datatype has no form in JSON, or bytes are not UTF-8.
    """
    name = oip_name(array.dtype)
    if name == OIP_BYTES:
        return [_text(element, tensor) for element in array.flat]
    if name not in _TYPES:
        raise RequestError(
            f"output {tensor!r} must be requested as binary data, got a request for JSON data of "
            f"{name}; write parameters.binary_data=true for this output"
        )
    return (array.astype(np.float32) if name == "BF16" else array).ravel()


def _flat(shape: Sequence[int], elements: int, data: list[Any], tensor: str) -> list[Any]:
    """Returns the values in C order; lists must be nested as the shape says, or not at all."""
    if len(data) == elements and not (data and isinstance(data[0], list)):
        return data
    values: list[Any] = [data]
    for axis, size in enumerate(shape):
        # No loop over rows: deeply nested data have half as many of them as bytes.
        if not (_LIST.issuperset(map(type, values)) and {size}.issuperset(map(len, values))):
            row = next(row for row in values if not isinstance(row, list) or len(row) != size)
            nested = f"{len(row)} elements" if isinstance(row, list) else "a value"
            received = f"{nested} at axis {axis}" if axis else f"{len(data)} elements"
            raise RequestError(
                f"data of tensor {tensor!r} with shape {list(shape)} must have {elements} "
                f"values, flat or nested as the shape says, got {received}; send the values in "
                "C order"
            )
        values = list(itertools.chain.from_iterable(values))
    return values


def _floats(datatype: str, dtype: np.dtype, values: list[Any], tensor: str) -> np.ndarray:
    """Returns a flat array. Infinities may be sent as such; none are made here."""
    try:
        if datatype in _PACKED:
            # Rounds to nearest, and raises for a finite number that would become infinite.
            return np.frombuffer(struct.pack(f"<{len(values)}{_PACKED[datatype]}", *values), dtype)
        wide = np.array(values, np.float64)
    except (OverflowError, struct.error):  # the latter for huge integers
        raise _out_of_range(datatype, values, dtype, tensor) from None
    array = _rounded_once(wide, dtype)
    if (np.isinf(array) & np.isfinite(wide)).any():
        raise _out_of_range(datatype, values, dtype, tensor)
    return array


def _rounded_once(wide: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns float64 values as bfloat16, rounded to nearest once.

    The cast goes through float32, and two roundings to nearest may end at the second nearest value.
    The first one is to odd here: a float32 that is not exact gets an odd last bit, so that the
    second rounding sees no tie (Boldo and Melquiond 2008, "Emulation of FMA and Correctly-Rounded
    Sums: Proved Algorithms Using Rounding to Odd"). Values out of range become infinite.
    """
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
        inexact, above = narrow != wide, np.abs(narrow) > np.abs(wide)
        bits = narrow.view(np.uint32)
        bits -= above  # the next value towards 0
        bits |= inexact
        return narrow.astype(dtype)


def _bounds(dtype: np.dtype) -> tuple[float | int, float | int]:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    limits = jax.numpy.finfo(dtype)  # knows bfloat16
    return float(limits.min), float(limits.max)


def _encoded(values: list[str], shape: Sequence[int], tensor: str) -> np.ndarray:
    array = np.empty(len(values), object)
    try:
        array[:] = [value.encode() for value in values]
    except UnicodeEncodeError as error:
        raise RequestError(
            f"texts of tensor {tensor!r} must be Unicode, got half of a surrogate pair in "
            f"{error.object[:40]!r}; send such bytes as binary data"
        ) from None
    return array.reshape(shape)


def _text(element: object, tensor: str) -> str:
    if not isinstance(element, bytes):
        raise ExecutionError(
            f"elements of tensor {tensor!r} must be bytes, got a {type(element).__name__}; the "
            "model's host function must encode it"
        )
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise RequestError(
            f"output {tensor!r} must be requested as binary data, got bytes that are not UTF-8: "
            f"{element[:20]!r}; write parameters.binary_data=true for this output"
        ) from None


def _mistyped(
    datatype: str, values: list[Any], types: frozenset[type], tensor: str
) -> RequestError:
    value = next(value for value in values if type(value) not in types)
    name = _NAMES.get(type(value), {dict: "an object", list: "a list"}.get(type(value), "null"))
    expected = " or ".join(_NAMES[kind] for kind in sorted(types, key=str))
    return RequestError(
        f"values of tensor {tensor!r} of {datatype} must each be {expected}, got {name}: "
        f"{str(value)[:40]}; write values such as {_EXAMPLES.get(datatype, '1')}"
    )


def _out_of_range(datatype: str, values: list[Any], dtype: np.dtype, tensor: str) -> RequestError:
    low, high = _bounds(dtype)
    outside = (v for v in values if not low <= v <= high and v == v and abs(v) != float("inf"))
    # A value that only rounds above the largest one lies between it and the next power of two.
    value = next(outside, max(values, key=abs))
    return RequestError(
        f"values of tensor {tensor!r} of {datatype} must be from {low} to {high}, got "
        f"{str(value)[:40]}; send them in range, or use a wider datatype if the model takes one"
    )
