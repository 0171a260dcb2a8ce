# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What loading a directory would do, from its headers alone, before a byte of a tensor is read."""

import dataclasses
import math
from pathlib import Path

from flax import nnx
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from dovetail_models.abbreviation import abbreviate
from dovetail_models.hf.load import plan
from dovetail_models.hf.match import Source
from dovetail_models.hf.table import dotted
from dovetail_models.shard import RULES, WEIGHTS, Rules, shardings

_TITLES = ("leaf", "tensors", "shape", "dtype", "stored", "op", "spec", "bytes per device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One leaf: what it will be, what fills it, and where it will lie (None: whole)."""

    leaf: str
    shape: tuple[int, ...]
    dtype: str
    tensors: str
    stored: str
    op: str
    spec: PartitionSpec | None
    bytes_per_device: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A line per leaf. `str` is an aligned table with equal layers in one row, and the totals."""

    lines: tuple[Line, ...]

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(math.prod(line.shape) for line in self.lines)

    @property
    def bytes_per_device(self) -> int:
        """What the parameters take on each device."""
        return sum(line.bytes_per_device for line in self.lines)

    def __str__(self) -> str:
        lines = {line.leaf: line for line in self.lines}
        alike = abbreviate((line.leaf, _cells(line)) for line in self.lines)
        rows = [_TITLES]
        rows += [_row(short, [lines[leaf] for leaf in leaves]) for short, leaves in alike.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        text = [_aligned(row, widths) for row in rows]
        totals = f"{self.parameters:,} parameters, {self.bytes_per_device:,} bytes per device"
        return "\n".join([*text, totals])


def explain(
    path: str | Path,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules = RULES,
    allow: tuple[str, ...] = (),
) -> Plan:
    """How `load` would fill each leaf of the model in a directory and place it on `mesh`.

    The mesh may be abstract, so that a plan for many devices can be made without them. Raises what
    `load` raises for names, shapes and axes that do not fit.
    """
    model, found = plan(Path(path), rules=rules, allow=allow)
    structs = nnx.to_flat_state(nnx.state(model, WEIGHTS))
    places = [None] * len(structs)
    if mesh is not None:
        placed = nnx.to_flat_state(shardings(model, mesh, rules=rules, only=WEIGHTS))
        places = [place.get_value() for _, place in placed]
    lines = []
    for (leaf, struct), place in zip(structs, places, strict=True):
        source, dtype = found.sources[dotted(leaf)], struct.get_value().dtype
        held = struct.shape if place is None else place.shard_shape(struct.shape)
        line = Line(
            leaf=dotted(leaf),
            shape=struct.shape,
            dtype=str(dtype),
            tensors=_tensors(source),
            stored=source.tensors[0].stored,
            op=str(source.op),
            spec=None if place is None else place.spec,
            bytes_per_device=math.prod(held) * dtype.itemsize,
        )
        lines.append(line)
    return Plan(tuple(lines))


def _tensors(source: Source) -> str:
    """The name, with the range of a stack: `experts.{0..7}.w1.weight`."""
    return source.name.replace("{e}", f"{{0..{len(source.tensors) - 1}}}")


def _cells(line: Line) -> tuple[str, ...]:
    """What a row says of its leaves, but for their names."""
    shape = "x".join(map(str, line.shape))
    spec = "-" if line.spec is None else f"({', '.join(map(str, line.spec))})"
    return (shape, line.dtype, line.stored, line.op, spec)


def _row(leaf: str, lines: list[Line]) -> tuple[str, ...]:
    """The row of leaves that are alike."""
    tensors = ", ".join(abbreviate((line.tensors, None) for line in lines))
    size = sum(line.bytes_per_device for line in lines)
    return (leaf, tensors, *_cells(lines[0]), f"{size:,}")


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    *texts, number = row
    cells = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
    return "  ".join([*cells, number.rjust(widths[-1])])
