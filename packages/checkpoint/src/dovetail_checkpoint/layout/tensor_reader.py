# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Safetensors files as a source of leaves. Each device's shard is read directly.

Orbax 0.12.8 also loads the format to shardings (CheckpointLayout.SAFETENSORS). It does not fit
here: it narrows 64-bit tensors to 32 bits like JAX; it cannot read one tensor to the host alone; it
reads every *.safetensors of a directory, without the index; overlapping tensors and bytes past the
end load silently; and its errors do not name tensor and file. Files are read, not mapped: a
truncated mapped file kills the process, and JAX's arrays on a CPU would stay views of the file.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint._safetensors import Tensor
from dovetail_checkpoint.layout.region import read_region
from dovetail_checkpoint.layout.safetensors import DTYPES
from dovetail_checkpoint.layout.source import SourceLeaf, Value
from dovetail_checkpoint.layout.tensor_index import find_files
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.names import match_names
from dovetail_checkpoint.proof.report import DamageError, Problem


class TensorReader:
    """A Source over a safetensors file, a directory of them, or an index.

    Leaves are named in the form of `names.match_names`.

    Raises:
        ValueError: There is no such file, or JAX lacks a dtype.
        DamageError: A file, a header or the index differs from its digest.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = find_files(path)
        if self._files.problems:
            raise DamageError(path, self._files.problems)
        names = list(self._files.file_of)
        self._tensor_of = dict(zip(match_names(names), names, strict=True))
        self.leaves = {name: self._leaf(name) for name in self._tensor_of}

    def read(self, places: Mapping[str, jax.sharding.Sharding | None]) -> dict[str, Value]:
        """See Source.read. Each process reads the shards of its devices."""
        values: dict[str, Value] = {}
        with ExitStack() as stack:
            opened: dict[str, int] = {}
            for name, place in places.items():
                file, tensor = self._lies(name)
                if file not in opened:
                    opened[file] = stack.enter_context(_opened(self._files.directory / file))
                values[name] = _read(opened[file], name, tensor, place)
        return values

    def damaged_files(self, names: list[str]) -> list[Problem]:
        """Returns the files changed since they were opened, and those whose leaves differ when read
        again.

        A leaf that differs only on a device is no file's fault.
        """
        problems = {problem.where: problem for problem in find_files(self.path).problems}
        wrong: dict[str, list[str]] = {}
        for name in names:
            file, _ = self._lies(name)
            if file in problems:
                continue
            try:
                value = self.read({name: None})[name]
            except OSError as error:
                problems[file] = Problem(where=file, reason=str(error))
                continue
            want = self.leaves[name].digest
            if want is not None and hex_digests([value]) != [want]:
                wrong.setdefault(file, []).append(name)
        for file, leaves in wrong.items():
            reason = f"holds other bits than were written, in {', '.join(leaves)}"
            problems[file] = Problem(where=file, reason=reason)
        return list(problems.values())

    def _lies(self, name: str) -> tuple[str, Tensor]:
        tensor = self._tensor_of[name]
        file = self._files.file_of[tensor]
        return file, self._files.headers[file].tensors[tensor]

    def _leaf(self, name: str) -> SourceLeaf:
        file, tensor = self._lies(name)
        if tensor.dtype not in DTYPES.values():
            raise ValueError(
                f"a tensor must be of dtype {sorted(DTYPES)}, got {tensor.dtype} of "
                f"{self._tensor_of[name]!r} in {self._files.directory / file}; convert the file "
                "with the program that wrote it"
            )
        digests = self._files.headers[file].digests or {}
        digest = digests.get(self._tensor_of[name])
        return SourceLeaf(name=name, shape=tensor.shape, dtype=tensor.dtype, digest=digest)


def verify_safetensors(path: str | Path) -> tuple[bool, list[Problem]]:
    """Reads everything at `path`. Returns whether all of it is proven, and the problems."""
    path = Path(path).absolute()
    files = find_files(path)
    if files.problems:
        return False, list(files.problems)
    reader = TensorReader(path)
    problems = reader.damaged_files(list(reader.leaves))
    return files.proved and not problems, problems


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(
    file: int, name: str, tensor: Tensor, place: jax.sharding.Sharding | None
) -> jax.Array | np.ndarray:
    dtype = jnp.dtype(tensor.dtype)
    if place is None:
        whole = [(0, n) for n in tensor.shape]
        return read_region(file, tensor.start, tensor.shape, dtype, whole)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"a leaf on a device must have a dtype that JAX keeps, got {dtype} of {name}; set "
            "jax_enable_x64, or give a NumPy array as the target"
        )
    parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def part(index: Any) -> np.ndarray:
        region = tuple(s.indices(n)[:2] for s, n in zip(index, tensor.shape, strict=True))
        if region not in parts:  # replicas are read once
            parts[region] = read_region(file, tensor.start, tensor.shape, dtype, region)
        return parts[region]

    return jax.make_array_from_callback(tensor.shape, place, part)
