# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Datatypes of the Open Inference Protocol, and tensors as its raw little-endian bytes.

BF16 is Triton's extension. The names of other dtypes of a bundle are ours: those of
less than a byte take one byte an element, with the value in its low bits and zeros above.
"""

import math
import struct
from collections.abc import Sequence

import numpy as np

from dovetail_serve.errors import ExecutionError, RequestError, TooLarge
from dovetail_serve.types import BYTES, numpy_dtype

OIP_BYTES = "BYTES"
# Elements of one request that are converted one by one: those of BYTES, and the values of
# `contents` in gRPC. Each holds the event loop for up to a microsecond.
MAX_CONVERTED = 1 << 20
# Names of a bundle's dtypes. From complex64 on they are extensions, raw only.
_DTYPES = (
    *("bool", *(f"{kind}int{bits}" for kind in ("u", "") for bits in (8, 16, 32, 64))),
    *("float16", "float32", "float64", "bfloat16", BYTES),
    *("complex64", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e3m4"),
    *("float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
# Datatype of the protocol by the name of a bundle's dtype.
OIP_NAMES = {name: name.upper().replace("BFLOAT", "BF").replace("FLOAT", "FP") for name in _DTYPES}
# NumPy dtype by datatype of the protocol. BYTES are arrays of objects of class bytes.
DATATYPES = {oip: numpy_dtype(name) for name, oip in OIP_NAMES.items()}
# The way back. NumPy computes `dtype.name` anew each time, in 4 us.
_BY_DTYPE = {dtype: name for name, dtype in DATATYPES.items()}
# Largest byte of the datatypes that do not use all values of a byte.
_LARGEST = {"BOOL": 1, "INT2": 3, "UINT2": 3, "INT4": 15, "UINT4": 15, "FP4_E2M1FN": 15}
_LENGTH = struct.Struct("<I")
# NumPy's bound, and one that no request reaches; a size of 0 beside huge ones overflows NumPy.
_MAX_AXES, _MAX_ELEMENTS = 64, 1 << 48

Buffer = bytes | bytearray | memoryview


def from_raw(
    datatype: str, shape: Sequence[int], data: Buffer, *, tensor: str = "input"
) -> np.ndarray:
    """Returns the array of raw bytes. Numeric arrays share the memory of aligned `data`.

    Args:
        datatype: Name of the datatype in the protocol, such as "FP32".
        shape: Sizes of the axes.
        data: Values in C order, little-endian. Each element of BYTES is its length, four bytes,
            and its bytes.
        tensor: Name of the tensor, for messages.

    Returns:
        A read-only array; an array of objects of class bytes for BYTES.

    Raises:
        RequestError: The datatype is unknown, no array can have the shape, or the number of bytes
            or a value does not fit.
    """
    dtype = dtype_of(datatype, tensor=tensor)
    elements = count(shape, tensor=tensor)
    if datatype == OIP_BYTES:
        return _bytes_array(elements, tuple(shape), memoryview(data), tensor)
    expected = elements * dtype.itemsize
    if len(data) != expected:
        raise RequestError(
            f"tensor {tensor!r} of {datatype} and shape {list(shape)} must have {expected} bytes, "
            f"got {len(data)}; send its values in C order, little-endian"
        )
    array = np.frombuffer(data, dtype).reshape(shape)
    if not array.flags.aligned:
        array = array.copy()
    if datatype in _LARGEST and elements:
        largest = int(array.view(np.uint8).max())
        if largest > _LARGEST[datatype]:
            raise RequestError(
                f"bytes of tensor {tensor!r} of {datatype} must be at most {_LARGEST[datatype]}, "
                f"got {largest}; send one byte an element, with zeros above its value"
            )
    array.flags.writeable = False
    return array


def to_raw(array: np.ndarray, *, tensor: str = "output") -> bytes:
    """Returns the values in C order, little-endian; elements of BYTES with their length before.

    Raises:
        ExecutionError: An element of an array of objects is no `bytes`.
    """
    if array.dtype == object:
        parts = []
        for element in array.flat:
            if not isinstance(element, bytes):
                raise ExecutionError(
                    f"elements of tensor {tensor!r} must be bytes, got a "
                    f"{type(element).__name__}; the model's host function must encode it"
                )
            parts += (_LENGTH.pack(len(element)), element)
        return b"".join(parts)
    bound = _LARGEST.get(_BY_DTYPE[array.dtype])
    if bound is not None:
        # Bits above the value are undefined in memory.
        return (np.ascontiguousarray(array).view(np.uint8) & bound).tobytes()
    return array.tobytes()


def oip_name(dtype: np.dtype | str) -> str:
    """Returns the protocol's name for a dtype of a bundle, "bytes" or objects included."""
    return OIP_NAMES[dtype] if isinstance(dtype, str) else _BY_DTYPE[dtype]


def dtype_of(datatype: str, *, tensor: str = "input") -> np.dtype:
    """Returns the NumPy dtype of a datatype of the protocol. Raises RequestError."""
    if datatype not in DATATYPES:
        raise RequestError(
            f"the datatype of tensor {tensor!r} must be one of {', '.join(DATATYPES)}, got "
            f"{datatype[:40]!r}; write one such as 'FP32'"
        )
    return DATATYPES[datatype]


def count(shape: Sequence[int], *, tensor: str = "input") -> int:
    """Returns the number of elements. Raises RequestError if no array can have the shape."""
    if len(shape) > _MAX_AXES:
        raise RequestError(
            f"tensor {tensor!r} must have at most {_MAX_AXES} axes, got {len(shape)}; send the "
            "shape that the model's metadata gives"
        )
    elements = math.prod(shape)
    least = min(shape, default=1)
    largest = elements if least > 0 else math.prod(size for size in shape if size)
    if least < 0 or largest > _MAX_ELEMENTS:
        raise RequestError(
            f"sizes of tensor {tensor!r} must be integers from 0 with a product of at most "
            f"{_MAX_ELEMENTS}, got shape {list(shape)}; write the number of rows that are sent"
        )
    return elements


def check_content_type(value: object, owner: str, datatype: str | None = None) -> None:
    """Raises RequestError for a `content_type` that would change the values.

    MLServer's clients send it. Its servers decode values by it: "np" and "str" mean the array and
    the texts as they are; "base64", "datetime" and "pd" mean others.

    Args:
        value: The parameter; None if it is absent.
        owner: The input or "the request", for messages.
        datatype: The input's datatype; None for the request.
    """
    fitting = {None: ("np", "str"), OIP_BYTES: ("str",)}.get(datatype, ("np",))
    if value is not None and value not in fitting:
        raise RequestError(
            f"content_type of {owner} must be {' or '.join(fitting)}, got {str(value)[:40]!r}; "
            "decode the values in the client, and leave it out"
        )


def check_converted(elements: int) -> None:
    """Raises TooLarge if a request has too many elements that are converted one by one."""
    if elements > MAX_CONVERTED:
        raise TooLarge(
            f"a request must have at most {MAX_CONVERTED} elements of BYTES and of typed contents, "
            f"got {elements}; divide it, or send numbers as raw bytes"
        )


def _bytes_array(
    elements: int, shape: tuple[int, ...], data: memoryview, tensor: str
) -> np.ndarray:
    # Before the array is made: a shape may promise more elements than memory holds.
    if len(data) < elements * _LENGTH.size:
        raise _misfit(elements, shape, len(data), tensor, "has too few bytes")
    array = np.empty(elements, object)
    offset = 0
    for i in range(elements):
        start = offset + _LENGTH.size
        if start > len(data):
            raise _misfit(elements, shape, len(data), tensor, f"ends before element {i}")
        offset = start + _LENGTH.unpack_from(data, offset)[0]
        if offset > len(data):
            raise _misfit(elements, shape, len(data), tensor, f"ends inside of element {i}")
        array[i] = bytes(data[start:offset])
    if offset != len(data):
        rest = len(data) - offset
        raise _misfit(elements, shape, len(data), tensor, f"has {rest} bytes after its elements")
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _misfit(
    elements: int, shape: tuple[int, ...], size: int, tensor: str, how: str
) -> RequestError:
    return RequestError(
        f"tensor {tensor!r} of BYTES and shape {list(shape)} must have {elements} elements, each "
        f"a length of four bytes and its bytes, got {size} bytes and it {how}; write "
        "the lengths as little-endian uint32"
    )
