# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file, and the proof that we put into it.

    u64 length of the header | header: {"__metadata__", name: {dtype, shape, data_offsets}} | data

Numbers are little-endian, offsets count from the end of the header, and the tensors fill the data
without holes. A header is checked whole before any of its numbers is used.

A file that we write is an ordinary one whose `__metadata__` has two more texts:

    dovetail.digests    JSON of {name: digest} (digest.py)
    dovetail.sha256     SHA-256 of the canonical JSON of the header with "" in place of this text

so that any change of the header or of a tensor is found. A file with neither is read unverified; a
file with one of them has lost the other.

Source: the format's specification in the safetensors repository; tried with safetensors 0.8.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from dovetail_checkpoint.manifest import json_sha256

# The dtypes that both the format and JAX have, in the format's names.
DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Elements that share bytes, which no array of JAX does.
_PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

# The format's bound on a header; a larger number is another kind of file.
_MAX_HEADER_BYTES = 100_000_000
# NumPy's bounds on an array, which hold for an empty one too.
_MAX_AXES, _MAX_ELEMENTS = 64, 2**62
# The data starts at a multiple of this, so that programs which map the file get aligned tensors.
_ALIGN_BYTES = 64

METADATA = "__metadata__"
_DIGESTS = "dovetail.digests"
_SHA256 = "dovetail.sha256"
_RESERVED = (_DIGESTS, _SHA256, "format")
_NO_DIGEST = "0" * 16
_DIGEST = re.compile(r"[0-9a-f]{16}")


class FormatError(Exception):
    """What is wrong with a file; whoever knows its name says it."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor: NumPy's name of its dtype, and its bytes [start, stop) in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """The tensors of a file in the order of their bytes; digests and sha256 if it has the proof."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    digests: Mapping[str, str] | None = None
    sha256: str | None = None


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor in a file. Raises ValueError for a dtype that the format lacks."""
    if dtype not in _NAMES:
        raise ValueError(
            f"a safetensors file must hold arrays of dtype {sorted(_NAMES)}, got dtype={dtype}; "
            'convert with cast("NAME", "float32"), or leave it out with drop("NAME")'
        )
    return math.prod(shape) * jnp.dtype(dtype).itemsize


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises ValueError or TypeError for what a user cannot put into the header."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"metadata must map texts to texts, got {key!r}: {value!r}; use json.dumps"
            )
        if key in _RESERVED:
            raise ValueError(
                f"metadata must leave the keys {_RESERVED} to the writer, got {key!r}; "
                "give it another name"
            )


def encode(
    leaves: Mapping[str, tuple[tuple[int, ...], str]],
    *,
    metadata: Mapping[str, str],
    digests: Mapping[str, str] | None = None,
) -> tuple[bytes, Header]:
    """The bytes before the data of a file that holds `leaves` (name: shape, dtype); the header.

    Tensors lie by falling size of element, then by name, as the format's library puts them: each
    is aligned to its elements. Without `digests` the bytes are as many as with them.
    """
    order = sorted(leaves, key=lambda name: (-jnp.dtype(leaves[name][1]).itemsize, name))
    entries: dict[str, Any] = {}
    stop = 0
    for name in order:
        shape, dtype = leaves[name]
        start, stop = stop, stop + tensor_bytes(dtype, shape)
        offsets = [start, stop]
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": offsets}
    digests = {name: (digests or {}).get(name, _NO_DIGEST) for name in order}
    texts = {"format": "pt", **metadata, _DIGESTS: json.dumps(digests), _SHA256: ""}
    texts[_SHA256] = json_sha256({METADATA: texts, **entries})
    text = json.dumps({METADATA: texts, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN_BYTES)
    if len(text) > _MAX_HEADER_BYTES:
        raise ValueError(
            f"a safetensors header must fit in {_MAX_HEADER_BYTES} bytes, got {len(text)} for "
            f"{len(leaves)} leaves; use a smaller file_bytes, or stack leaves"
        )
    data = len(text).to_bytes(8, "little") + text
    return data, decode(data, file_bytes=len(data) + stop)


def read_header(path: Path) -> Header:
    """The header of a file, checked. Raises FormatError, OSError."""
    with open(path, "rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise FormatError(f"is cut short or of another format ({size} bytes)")
        file.seek(0)
        return decode(file.read(8 + length), file_bytes=size)


def decode(data: bytes, *, file_bytes: int) -> Header:
    """The header from the bytes before the data of a file. Raises FormatError."""
    entries = parse_json(data[8:])
    texts = entries.get(METADATA)
    texts = {} if texts is None else texts  # the library takes null
    if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
        raise FormatError(f"{METADATA} is not an object of texts")
    tensors = {
        name: _tensor(name, entry, base=len(data))
        for name, entry in entries.items()
        if name != METADATA
    }
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    _check_tiling(tensors, base=len(data), file_bytes=file_bytes)
    sha256 = texts.get(_SHA256)
    if (sha256 is None) != (_DIGESTS not in texts):
        raise FormatError("its header has lost half of its proof")
    if sha256 is None:
        return Header(tensors=tensors, metadata=texts)
    if stated_sha256({**entries, METADATA: {**texts, _SHA256: ""}}) != sha256:
        raise FormatError("its header does not have the sha256 that it states")
    digests = parse_json(texts[_DIGESTS].encode())
    if digests.keys() != tensors.keys() or not all(map(_is_digest, digests.values())):
        raise FormatError("its digests are not those of its tensors")
    return Header(tensors=tensors, metadata=texts, digests=digests, sha256=sha256)


def parse_json(text: bytes) -> dict[str, Any]:
    """The object of a JSON text. Raises FormatError, also for a key that comes twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"{_short(twice)} comes twice")
        return found

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"is not JSON where it should be ({error})") from error
    if not isinstance(found, dict):
        raise FormatError("is not a JSON object where it should be")
    return found


def stated_sha256(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of what `parse_json` gave. Raises FormatError."""
    try:
        return json_sha256(document)
    except (ValueError, RecursionError) as error:  # 1e999 is read as infinite
        raise FormatError(f"is not the JSON that was written ({error})") from error


def _tensor(name: str, entry: Any, *, base: int) -> Tensor:
    """One entry of a header, its own numbers checked."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FormatError(f"tensor {_short(name)} is {_short(entry)}")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES.keys() | _PACKED_BITS.keys():
        raise FormatError(f"tensor {_short(name)} has dtype {_short(kind)}")
    if not _counts(shape) or len(shape) > _MAX_AXES:
        raise FormatError(f"tensor {_short(name)} has shape {_short(shape)}")
    if math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
        raise FormatError(f"tensor {_short(name)} has shape {_short(shape)}, larger than memory")
    if not _counts(offsets) or len(offsets) != 2:
        raise FormatError(f"tensor {_short(name)} has data_offsets {_short(offsets)}")
    start, stop = offsets
    bits = _PACKED_BITS.get(kind) or 8 * jnp.dtype(DTYPES[kind]).itemsize
    if (stop - start) * 8 != math.prod(shape) * bits:
        raise FormatError(
            f"tensor {_short(name)} of {kind} {_short(shape)} has {stop - start} bytes"
        )
    dtype = DTYPES.get(kind, kind)
    return Tensor(dtype=dtype, shape=tuple(shape), start=base + start, stop=base + stop)


def _check_tiling(tensors: Mapping[str, Tensor], *, base: int, file_bytes: int) -> None:
    end = base
    for name, tensor in tensors.items():
        if tensor.start != end:
            raise FormatError(f"tensor {_short(name)} starts at byte {tensor.start}, not at {end}")
        end = tensor.stop
    if end != file_bytes:
        raise FormatError(f"the tensors end at byte {end} of {file_bytes}")


def _counts(value: Any) -> bool:
    """Whether a value is a list of integers from 0. JSON's true is an int to Python."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
