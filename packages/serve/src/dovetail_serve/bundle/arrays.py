# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays in a safetensors file: written in one pass, then read or mapped.

Arrays whose size is a multiple of 64 bytes come first, so that each of them begins at a multiple of
64 bytes and JAX's CPU backend takes a map itself as its buffer. Other tools read the file; dtypes
that the format lacks (int4, float8_e4m3) are stored in others, and the manifest has the dtype.

A file that shrinks under a map kills the process (SIGBUS), and one that is written to changes the
weights of a running model. So arrays are read unless the caller asks for a map, and files are made
read-only.
"""

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail_serve import _safetensors
from dovetail_serve._safetensors import ALIGN_BYTES
from dovetail_serve.bundle.digest import digest, raw
from dovetail_serve.types import Array

FORMAT_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
# Integers that the format lacks, and those that hold their values.
# (int2 and uint2 are left out: `jax.export` cannot serialize a function of them.)
_INTEGERS = {"int4": "int8", "uint4": "uint8"}
# Other dtypes of one byte an element in memory that the format lacks, and the dtype of their bytes.
_SINGLE_BYTES = dict.fromkeys(
    ("float4_e2m1fn", "float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz"), "uint8"
)
STORED_AS = _INTEGERS | _SINGLE_BYTES

# Larger headers are refused unread, like larger manifests, which have more text for each array.
MAX_HEADER_BYTES = 16 << 20

# Names of all dtypes that a file of arrays holds.
DTYPES = frozenset(FORMAT_NAMES) | frozenset(STORED_AS)

# Dtypes of which accelerators pack several elements in a byte.
SUB_BYTE = ("int4", "uint4", "float4_e2m1fn")

# A leaf of a caller's tree: NumPy's scalars count as arrays without axes.
Leaf = Array | np.generic

# Dtypes that `Platform.weights` converts. Those of 8 bits or fewer are quantized values.
_CONVERTIBLE = ("float16", "bfloat16", "float32", "float64")


def stored_dtype(name: str, owner: str = "an array") -> np.dtype:
    """Returns the stored dtype of an array of dtype `name`.

    Raises TypeError for a dtype that a bundle cannot hold; the message begins with `owner`.
    """
    stored = STORED_AS.get(name, name)
    if stored not in FORMAT_NAMES:
        raise TypeError(
            f"{owner} must be of a dtype that jax.export and safetensors hold, got "
            f"dtype={name!r}; convert it, or split a complex128 array in two of float64"
        )
    return np.dtype(jax.numpy.dtype(stored))


def converted(dtype: Any, weights_dtype: str | None) -> Any:
    """Returns the dtype of a weight of `dtype` on a platform with `Platform.weights`."""
    name = jax.numpy.dtype(dtype).name
    return jax.numpy.dtype(weights_dtype) if weights_dtype and name in _CONVERTIBLE else dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """A file of arrays as written.

    Attributes:
        bytes: Size of the file.
        sha256: Digest of the file.
        header: Digest of the bytes before the data.
        arrays: Digest of each array.
    """

    bytes: int
    sha256: str
    header: str
    arrays: Mapping[str, str]


def encode_header(arrays: Mapping[str, Leaf]) -> tuple[bytes, list[str]]:
    """Returns the header of a file, and the names of the arrays in the order of their data.

    Raises TypeError for a dtype unknown to the format, and ValueError above MAX_HEADER_BYTES.
    """
    dtypes = {name: stored_dtype(array.dtype.name) for name, array in arrays.items()}
    sizes = {name: math.prod(a.shape) * dtypes[name].itemsize for name, a in arrays.items()}
    names = sorted(arrays, key=lambda name: (sizes[name] % ALIGN_BYTES > 0, name))
    tensors = {name: (FORMAT_NAMES[dtypes[name].name], arrays[name].shape) for name in names}
    header = _safetensors.encode_header(_safetensors.entries(tensors))
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(
            f"names and shapes of all arrays must fit in {MAX_HEADER_BYTES} bytes, got "
            f"{len(header)} for {len(arrays)} arrays; stack the weights of equal layers"
        )
    return header, names


def create_read_only(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a new file for this descriptor alone to write: its mode is 0444 within the umask.

    It is an `opener` of `open`. Raises OSError.
    """
    return os.open(path, flags, 0o444)


def write_arrays(path: Path, arrays: Mapping[str, Leaf]) -> Written:
    """Writes a read-only file, with one array at a time in host memory.

    Raises OSError, for example on a full disk, and TypeError for a dtype unknown to the format.
    """
    header, names = encode_header(arrays)
    whole, size = hashlib.sha256(header), len(header)
    digests: dict[str, str] = {}
    with open(path, "xb", opener=create_read_only) as file, ThreadPoolExecutor(1) as pool:
        file.write(header)
        for name in names:
            data = raw(stored(arrays[name]))
            # The digest of the array beside that of the file, on another core.
            pending = pool.submit(digest, data)
            whole.update(data)
            size += file.write(data)
            digests[name] = pending.result()
    return Written(
        bytes=size,
        sha256=whole.hexdigest(),
        header=digest(header),
        arrays={name: digests[name] for name in arrays},
    )


def stored(array: Leaf) -> np.ndarray:
    """Returns the values of an array in host memory, with the dtype and byte order of files.

    JAX caches the host copy of an array inside the array that is read, so reading all weights would
    hold all of them in host memory. An array on several devices or outside of host memory is
    therefore copied on its devices first, and the cache goes with the copy.
    """
    if isinstance(array, jax.Array) and not (
        len(array.devices()) == 1 and next(iter(array.devices())).platform == "cpu"
    ):
        array = array.copy()
    values = np.asarray(array)
    values = values.astype(jax.numpy.dtype(values.dtype.name), copy=False)
    dtype = stored_dtype(values.dtype.name)
    # In memory an int4 of -1 is 15 in its byte, and other tools would read that.
    return values.astype(dtype) if values.dtype.name in _INTEGERS else values.view(dtype)


def unstored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the values of a file as an array of `dtype`: a copy for 4-bit integers, else them."""
    target = jax.numpy.dtype(dtype)
    return values.astype(target) if dtype in _INTEGERS else values.view(target)


class Place(NamedTuple):
    """The place of an array in a file.

    Attributes:
        start: Its first byte.
        stop: Its end, exclusive.
        dtype: The dtype that the file has.
        shape: Sizes of its axes.
    """

    start: int
    stop: int
    dtype: np.dtype
    shape: tuple[int, ...]


def places(path: Path, dtypes: Mapping[str, str]) -> dict[str, Place]:
    """Returns the places of a file's arrays, in their order.

    Args:
        path: The file.
        dtypes: Dtypes of the expected arrays, by name.

    Raises:
        FormatError: The file is not such a safetensors file; the message lacks its name.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        header_bytes = 8 + int.from_bytes(file.read(8), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise _safetensors.FormatError(
            f"has a header of {header_bytes} bytes, and {MAX_HEADER_BYTES} are allowed"
        )
    header = _safetensors.read_header(path)
    if differing := sorted(header.tensors.keys() ^ dtypes.keys()):
        raise _safetensors.FormatError(f"has other arrays than the manifest: {differing[0]!r}")
    by_name = {}
    for name, tensor in header.tensors.items():
        dtype = stored_dtype(dtypes[name])
        if FORMAT_NAMES[dtype.name] != tensor.dtype:
            raise _safetensors.FormatError(f"tensor {name!r} is {tensor.dtype}, not {dtypes[name]}")
        by_name[name] = Place(tensor.start, tensor.stop, dtype, tensor.shape)
    return by_name


def map_arrays(path: Path, by_name: Mapping[str, Place]) -> dict[str, np.ndarray]:
    """Maps a file's arrays into memory, read-only, with the dtypes of files. Raises OSError."""
    data = np.memmap(path, np.uint8, "r")
    return {
        name: np.asarray(data[place.start : place.stop].view(place.dtype).reshape(place.shape))
        for name, place in by_name.items()
    }


def read_array(path: Path, place: Place) -> np.ndarray:
    """Reads an array into memory that JAX's CPU backend takes as its buffer.

    Raises FormatError if the file has become shorter, and OSError.
    """
    size = place.stop - place.start
    data = np.empty(size + ALIGN_BYTES, np.uint8)
    first = -data.ctypes.data % ALIGN_BYTES
    data, done = data[first : first + size], 0
    with open(path, "rb", buffering=0) as file:
        file.seek(place.start)
        while done < size:
            count = file.readinto(data[done:].data)
            if not count:
                raise _safetensors.FormatError("was cut short while it was read")
            done += count
    data.flags.writeable = False
    return data.view(place.dtype).reshape(place.shape)
