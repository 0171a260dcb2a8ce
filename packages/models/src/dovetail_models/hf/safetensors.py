# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: a JSON header, then raw little-endian tensors.

    u64 length of the header | header: {name: {dtype, shape, data_offsets}, "__metadata__"} | data

Reading maps the file and gives views; nothing is copied until JAX transfers a part. The format's
own library copies each tensor in its NumPy path and refuses dtypes that NumPy lacks.
Source: the format's specification in the safetensors repository.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# The specification's bound on a header; a larger number is another kind of file.
_MAX_HEADER_BYTES = 100_000_000
# Data starts at a multiple of this, so that a mapped tensor can be one of JAX's CPU buffers.
_ALIGN_BYTES = 64


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
        return dict(_specs(path, json.loads(text), base=8 + length, size=size))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, f"a header of JSON entries: {error}", size) from error


def _specs(
    file: Path, entries: dict[str, Any], *, base: int, size: int
) -> Iterator[tuple[str, Spec]]:
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        start, stop = (base + offset for offset in entry["data_offsets"])
        shape, dtype = tuple(entry["shape"]), DTYPES.get(entry["dtype"])
        wanted = stop - start if dtype is None else math.prod(shape) * dtype.itemsize
        if not base <= start <= stop <= size or stop - start != wanted:
            raise ValueError(f"{name} has bytes {start} to {stop}, shape {shape}")
        yield name, Spec(file, entry["dtype"], shape, start, stop)


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


def views(specs: Mapping[str, Spec]) -> dict[str, np.ndarray]:
    """Views of the mapped files, one per spec.

    On a CPU, JAX uses an aligned view as the buffer itself. The mapping is read-only, and JAX does
    not reuse such a buffer when it is donated, so no program writes to the file.
    """
    mapped: dict[Path, np.ndarray] = {}
    found = {}
    for name, spec in specs.items():
        if spec.file not in mapped:
            mapped[spec.file] = np.asarray(np.memmap(spec.file, dtype=np.uint8, mode="r"))
        raw = mapped[spec.file][spec.start : spec.stop]
        found[name] = raw.view(dtype(spec)).reshape(spec.shape)
    return found


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
    text += b" " * (-(8 + len(text)) % _ALIGN_BYTES)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.make()).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
