# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Views of safetensors files, and writing of new ones.

Nothing is copied until JAX transfers a slice. The shared module `_safetensors` reads and checks the
header.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dovetail_models import _safetensors
from dovetail_models._safetensors import ALIGN_BYTES as ALIGN_BYTES
from dovetail_models._safetensors import METADATA, FormatError
from dovetail_models._safetensors import parse_json as parse_json

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
# Dtypes of the format that are read, including those of quantised tensors and their scales.
_STORED = DTYPES | {
    "U8": np.dtype(np.uint8),
    "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    "F8_E8M0": np.dtype(jnp.float8_e8m0fnu),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Spec:
    """The entry of one tensor in a file.

    Attributes:
        file: Path of the file.
        dtype: The format's name of the dtype, such as "BF16".
        shape: Sizes of the axes.
        start: First byte of the data in the file.
        stop: End of the data in the file, exclusive.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Pending:
    """A tensor to write.

    Attributes:
        dtype: Dtype of the tensor.
        shape: Shape of the tensor.
        make: Returns the tensor. Called at writing, so the host holds one tensor at a time.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def header(path: Path) -> dict[str, Spec]:
    """Returns the specs of a file by tensor name.

    Raises:
        FormatError: The file is truncated or not a safetensors file.
    """
    try:
        tensors = _safetensors.read_header(path).tensors
    except FormatError as error:
        raise FormatError(
            f"A safetensors file must be whole, got {path} of {path.stat().st_size} bytes: "
            f"{error}; fetch or save it again."
        ) from error
    return {name: Spec(path, x.dtype, x.shape, x.start, x.stop) for name, x in tensors.items()}


def dtype(spec: Spec) -> np.dtype:
    """Returns the NumPy dtype of a tensor.

    Raises:
        ValueError: The dtype is not in `DTYPES`.
    """
    if spec.dtype not in DTYPES:
        raise ValueError(
            f"A parameter must be of dtype {sorted(DTYPES)}, got dtype={spec.dtype} in "
            f"{str(spec.file)!r}. Convert the file first."
        )
    return DTYPES[spec.dtype]


class Maps:
    """Views of files. Each file is mapped once, at the first request of one of its tensors.

    On a CPU, JAX uses an aligned view as the buffer itself. The mapping is read-only, and JAX does
    not reuse such a buffer after donation, so no program writes to the file.
    """

    def __init__(self) -> None:
        self._files: dict[Path, np.ndarray] = {}

    def view(self, spec: Spec) -> np.ndarray:
        """Returns the tensor in the file's dtype.

        Raises:
            ValueError: No reader here supports the dtype.
        """
        if spec.file not in self._files:
            self._files[spec.file] = np.asarray(np.memmap(spec.file, dtype=np.uint8, mode="r"))
        raw = self._files[spec.file][spec.start : spec.stop]
        kind = _STORED[spec.dtype] if spec.dtype in _STORED else dtype(spec)
        return raw.view(kind).reshape(spec.shape)


def views(specs: Mapping[str, Spec]) -> dict[str, np.ndarray]:
    """Returns views of the mapped files by name.

    Raises:
        ValueError: A dtype is not a parameter's.
    """
    maps = Maps()
    for spec in specs.values():
        dtype(spec)
    return {name: maps.view(spec) for name, spec in specs.items()}


def write(path: Path, tensors: Mapping[str, Pending]) -> None:
    """Writes a new file with the tensors in this order, and returns after syncing it to disk."""
    kinds = {name: (_NAMES[tensor.dtype], tensor.shape) for name, tensor in tensors.items()}
    document = {METADATA: {"format": "pt"}, **_safetensors.entries(kinds)}
    with path.open("xb") as file:
        file.write(_safetensors.encode_header(document))
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.make()).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
