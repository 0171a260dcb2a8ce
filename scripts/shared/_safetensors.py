# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file.

    u64 length of the header | header: {"__metadata__", name: {dtype, shape, data_offsets}} | data

Numbers are little-endian, offsets count from the end of the header, and the tensors fill the data
without holes. The whole header is checked before any of its numbers is used. The format's own
library copies each tensor in its NumPy path, refuses dtypes without a NumPy equivalent, and checks
less.

Source: the format's specification in the safetensors repository; tried with safetensors 0.8.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Every dtype of the format and its bits; two or four elements of 4 or 6 bits share bytes.
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
BITS |= dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
BITS |= dict.fromkeys(("I16", "U16", "F16", "BF16"), 16)
BITS |= dict.fromkeys(("I32", "U32", "F32"), 32)
BITS |= dict.fromkeys(("I64", "U64", "F64", "C64"), 64)

METADATA = "__metadata__"
# The format's bound on a header; a larger number is another kind of file.
MAX_HEADER_BYTES = 100_000_000
# Data starts at a multiple of this, so that a mapped tensor can be one of JAX's CPU buffers.
ALIGN_BYTES = 64
# NumPy's bounds on an array, which hold for an empty one too.
_MAX_AXES, _MAX_ELEMENTS = 64, 2**62


class FormatError(ValueError):
    """A defect of a safetensors file. The caller adds the file's name to the message."""

    exit_code = 3  # of the command: damaged data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """The entry of one tensor in a header.

    Attributes:
        dtype: The format's name of the dtype, such as "BF16".
        shape: Sizes of the axes.
        start: First byte of the data in the file.
        stop: End of the data in the file, exclusive.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """A parsed header.

    Attributes:
        tensors: Tensors by name, in the order of their data.
        metadata: The texts under "__metadata__".
        document: The JSON object as parsed.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    document: Mapping[str, Any]


def read_header(path: Path) -> Header:
    """Reads the header of a file. Raises FormatError or OSError."""
    with open(path, "rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise FormatError(
                f"is cut short or of another format ({size} bytes, a header of {length})"
            )
        file.seek(0)
        return decode_header(file.read(8 + length), file_bytes=size)


def decode_header(data: bytes, *, file_bytes: int) -> Header:
    """Parses the bytes before the data of a file. Raises FormatError."""
    document = parse_json(data[8:])
    metadata = document.get(METADATA)
    metadata = {} if metadata is None else metadata  # the format's library takes null
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(f"{METADATA} is {_short(metadata)}, not an object of texts")
    tensors = {
        name: _tensor(name, entry, base=len(data))
        for name, entry in document.items()
        if name != METADATA
    }
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    _check_tiling(tensors, base=len(data), file_bytes=file_bytes)
    return Header(tensors=tensors, metadata=metadata, document=document)


def encode_header(document: Mapping[str, Any]) -> bytes:
    """Returns the bytes before the data. Raises FormatError above MAX_HEADER_BYTES."""
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise FormatError(f"its header must fit in {MAX_HEADER_BYTES} bytes, got {len(text)}")
    return len(text).to_bytes(8, "little") + text


def entries(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """Returns header entries for tensors (name: dtype, shape), their data in this order."""
    document: dict[str, Any] = {}
    stop = 0
    for name, (dtype, shape) in tensors.items():
        start, stop = stop, stop + math.prod(shape) * BITS[dtype] // 8
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
    return document


def parse_json(text: bytes) -> dict[str, Any]:
    """Parses a JSON object. Raises FormatError, also for a repeated key."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            # Counted in one pass: a damaged header may hold millions of keys.
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise FormatError(f"the key {_short(name)} comes twice")
        return members

    try:
        parsed = json.loads(text.decode(), object_pairs_hook=unique)
    except FormatError:
        raise
    except RecursionError as error:
        raise FormatError("is not JSON where it should be (nested too deeply)") from error
    except ValueError as error:
        raise FormatError(f"is not JSON where it should be ({error})") from error
    if not isinstance(parsed, dict):
        raise FormatError(f"the JSON is a {type(parsed).__name__}, not an object")
    return parsed


def _tensor(name: str, entry: Any, *, base: int) -> Tensor:
    """Checks one entry of a header."""
    tensor = f"tensor {_short(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FormatError(f"{tensor} is {_short(entry)}, without dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise FormatError(f"{tensor} has dtype {_short(dtype)}")
    if not _counts(shape) or len(shape) > _MAX_AXES:
        raise FormatError(f"{tensor} has shape {_short(shape)}")
    if math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
        raise FormatError(f"{tensor} has shape {_short(shape)}, larger than memory")
    if not _counts(offsets) or len(offsets) != 2:
        raise FormatError(f"{tensor} has data_offsets {_short(offsets)}")
    start, stop = offsets
    if (stop - start) * 8 != math.prod(shape) * BITS[dtype]:
        raise FormatError(f"{tensor} of {dtype} {_short(shape)} has {stop - start} bytes")
    return Tensor(dtype=dtype, shape=tuple(shape), start=base + start, stop=base + stop)


def _check_tiling(tensors: Mapping[str, Tensor], *, base: int, file_bytes: int) -> None:
    """Refuses overlaps and holes; the format forbids both."""
    end = base
    for name, tensor in tensors.items():
        if tensor.start != end:
            raise FormatError(f"tensor {_short(name)} starts at byte {tensor.start}, not at {end}")
        end = tensor.stop
    if end != file_bytes:
        cut = "is cut short: " if end > file_bytes else ""
        raise FormatError(f"{cut}the tensors end at byte {end} of {file_bytes}")


def _counts(value: Any) -> bool:
    """Tests for a list of integers from 0. (JSON's true is an int to Python.)"""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
