# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The source of leaves for `load`, `export_safetensors` and `diff`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from dovetail_checkpoint.proof.report import Problem

# What reading gives: Python numbers too, where a tree holds them.
Value = jax.Array | np.ndarray | int | float | bool


@dataclass(frozen=True, kw_only=True)
class SourceLeaf:
    """One readable leaf.

    Attributes:
        name: In the form of `names.match_names`.
        shape: Shape of the array.
        dtype: As in the manifest: "float32", "key<fry>", "python int".
        digest: Digest of the saved bits; None if none was recorded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: str | None = None


@runtime_checkable
class Source(Protocol):
    """An Orbax item, or safetensors files. Opening one reads metadata alone."""

    @property
    def path(self) -> Path:
        """The step, file or directory."""
        ...

    @property
    def leaves(self) -> Mapping[str, SourceLeaf]:
        """All leaves by name, in the writer's order."""
        ...

    def read(self, places: Mapping[str, jax.sharding.Sharding | None]) -> dict[str, Value]:
        """Reads the named leaves, whole. Does not compare digests.

        With several processes, all of them call this with the same names.

        Args:
            places: Sharding of each leaf; None for the host, as NumPy.

        Raises:
            OSError: A file cannot be read.
            ValueError: A leaf cannot be decoded.
        """
        ...

    def damaged_files(self, names: list[str]) -> list[Problem]:
        """Returns the files responsible for wrong bits in the named leaves, if known."""
        ...
