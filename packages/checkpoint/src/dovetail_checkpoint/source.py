# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What `load`, `export_safetensors` and `diff` read from: named leaves, whatever holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from dovetail_checkpoint.report import Problem

# What reading gives: Python numbers too, where a tree holds them.
Value = jax.Array | np.ndarray | int | float | bool


@dataclass(frozen=True, kw_only=True)
class SourceLeaf:
    """One leaf that can be read.

    name: in the form of `names.match_names`.
    dtype: as the manifest has it: "float32", "key<fry>", "python int".
    digest: of the bits that were saved; None where the writer took none.
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
        """The named leaves, whole, each in its place; None: on the host, as NumPy.

        With several processes all of them call this with the same names. Digests are not compared
        here. Raises OSError or ValueError for what cannot be read.
        """
        ...

    def damaged_files(self, names: list[str]) -> list[Problem]:
        """The files that are to blame for wrong bits in the named leaves, as far as can be told."""
        ...
