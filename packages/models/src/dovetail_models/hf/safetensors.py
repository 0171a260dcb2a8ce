# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: a JSON header, then raw little-endian tensors.

    u64 length of the header | header: {name: {dtype, shape, data_offsets}, "__metadata__"} | data

Reading maps the file and gives views; nothing is copied until JAX transfers a part. The format's
own library copies each tensor in its NumPy path and refuses dtypes that NumPy lacks. A header is
checked whole before any of its numbers is used.
Source: the format's specification in the safetensors repository.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

# Every dtype of the format (safetensors 0.8) and its bits; two or four 4-bit or 6-bit elements
# share bytes.
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
_BITS |= dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
_BITS |= dict.fromkeys(("I16", "U16", "F16", "BF16"), 16)
_BITS |= dict.fromkeys(("I32", "U32", "F32"), 32)
_BITS |= dict.fromkeys(("I64", "U64", "F64", "C64"), 64)

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
# What quantised tensors consist of.
_STORED = DTYPES | {
    "U8": np.dtype(np.uint8),
    "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    "F8_E8M0": np.dtype(jnp.float8_e8m0fnu),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# The specification's bound on a header; a larger number is another kind of file.
_MAX_HEADER_BYTES = 100_000_000
# NumPy's bounds on an array, which hold for an empty one too.
_MAX_DIMS, _MAX_SIZE = 64, 2**62
# Data starts at a multiple of this, so that a mapped tensor can be one of JAX's CPU buffers.
ALIGN_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Spec:
    """One tensor of a file: its dtype's name in the format, its shape, its bytes [start, stop)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Pending:
    """A tensor to be written: `make` returns it, so that one at a time is on the host."""

    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def header(path: Path) -> dict[str, Spec]:
    """The tensors of a file, by name; ValueError for a file that is cut or not safetensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise _damaged(path, f"a header of {length} bytes", size)
        text = file.read(length)
    try:
        entries = parse_json(text)
        _check_metadata(entries.pop("__metadata__", {}))
        specs = {name: _spec(path, name, entry, base=8 + length) for name, entry in entries.items()}
        _check_tiling(specs, base=8 + length, size=size)
    except ValueError as error:
        raise _damaged(path, f"a header of JSON entries: {error}", size) from error
    return specs


def parse_json(text: bytes) -> dict[str, Any]:
    """The object of a JSON text; ValueError for anything else and for a key that comes twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"the key {_short(name)} comes twice")
            found[name] = value
        return found

    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"the JSON is a {type(found).__name__}, not an object")
    return found


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"'__metadata__' is {_short(metadata)}, not an object of texts")


def _spec(file: Path, name: str, entry: Any, *, base: int) -> Spec:
    """One entry of a header, its own numbers checked."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(
            f"{_short(name)} is {_short(entry)}, without dtype, shape and data_offsets"
        )
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _BITS:
        raise ValueError(f"{_short(name)} has dtype {_short(kind)}")
    if not _counts(shape) or len(shape) > _MAX_DIMS:
        raise ValueError(f"{_short(name)} has shape {_short(shape)}")
    if math.prod(max(n, 1) for n in shape) > _MAX_SIZE:
        raise ValueError(f"{_short(name)} has shape {_short(shape)}, larger than memory")
    if not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{_short(name)} has data_offsets {_short(offsets)}")
    start, stop = offsets
    bits = math.prod(shape) * _BITS[kind]
    if (stop - start) * 8 != bits:
        raise ValueError(f"{_short(name)} of {kind} {_short(shape)} has {stop - start} bytes")
    return Spec(file, kind, tuple(shape), base + start, base + stop)


def _check_tiling(specs: Mapping[str, Spec], *, base: int, size: int) -> None:
    """The specification forbids overlaps and holes: the tensors tile the data of the file."""
    end = base
    for name, spec in sorted(specs.items(), key=lambda item: (item[1].start, item[1].stop)):
        if spec.start != end:
            raise ValueError(
                f"{_short(name)} starts at byte {spec.start} of the file, not at {end}"
            )
        end = spec.stop
    if end != size:
        raise ValueError(f"the tensors end at byte {end} of the file")


def _counts(value: Any) -> bool:
    """Whether a value is a list of integers from 0. (JSON's true is an int to Python.)"""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _damaged(path: Path, wanted: str, size: int) -> ValueError:
    return ValueError(
        f"A safetensors file must hold {wanted}, got {path} of {size} bytes. "
        "It is cut short or of another format; fetch or save it again."
    )


def dtype(spec: Spec) -> np.dtype:
    """The NumPy dtype of a tensor; ValueError for one that is not in `DTYPES`."""
    if spec.dtype not in DTYPES:
        raise ValueError(
            f"A parameter must be of dtype {sorted(DTYPES)}, got dtype={spec.dtype} in "
            f"{str(spec.file)!r}. Convert the file first."
        )
    return DTYPES[spec.dtype]


class Maps:
    """Views of files, each file mapped once, when a tensor of it is first asked for.

    On a CPU, JAX uses an aligned view as the buffer itself. The mapping is read-only, and JAX does
    not reuse such a buffer when it is donated, so no program writes to the file.
    """

    def __init__(self) -> None:
        self._files: dict[Path, np.ndarray] = {}

    def view(self, spec: Spec) -> np.ndarray:
        """The tensor, in the file's dtype; ValueError for one that no reader here wants."""
        if spec.file not in self._files:
            self._files[spec.file] = np.asarray(np.memmap(spec.file, dtype=np.uint8, mode="r"))
        raw = self._files[spec.file][spec.start : spec.stop]
        kind = _STORED[spec.dtype] if spec.dtype in _STORED else dtype(spec)
        return raw.view(kind).reshape(spec.shape)


def views(specs: Mapping[str, Spec]) -> dict[str, np.ndarray]:
    """Views of the mapped files, one per spec; ValueError for a dtype that no parameter has."""
    maps = Maps()
    for spec in specs.values():
        dtype(spec)
    return {name: maps.view(spec) for name, spec in specs.items()}


def write(path: Path, tensors: Mapping[str, Pending]) -> None:
    """A new file of the tensors in this order, on disk when this returns."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        span = (offset, offset + tensor.nbytes)
        kind = _NAMES[tensor.dtype]
        entries[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": span}
        offset = span[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN_BYTES)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.make()).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
