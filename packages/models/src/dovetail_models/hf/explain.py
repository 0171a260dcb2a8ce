# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A table of a load: the source and placement of each leaf, from the file headers alone."""

import dataclasses
import math
from pathlib import Path

from flax import nnx
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from dovetail_models._explained import Explained
from dovetail_models.build import place_on
from dovetail_models.describing.abbreviation import abbreviate, aligned, dotted
from dovetail_models.hf.load import plan
from dovetail_models.hf.match import Source
from dovetail_models.placing.shard import WEIGHTS, Rules

_TITLES = ("leaf", "tensors", "shape", "dtype", "stored", "op", "spec", "bytes per device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """The source and placement of one leaf.

    Attributes:
        leaf: Dotted path of the leaf.
        shape: Shape of the leaf.
        dtype: Dtype of the leaf.
        tensors: Tensor in the files; a stack shows the range of its index, such as `{0..7}`.
        stored: Storage format of the tensor.
        op: Operation from tensor to leaf.
        spec: Partition spec on the mesh. None without a mesh: the leaf is whole.
        bytes_per_device: Bytes of the leaf on one device.
    """

    leaf: str
    shape: tuple[int, ...]
    dtype: str
    tensors: str
    stored: str
    op: str
    spec: PartitionSpec | None
    bytes_per_device: int


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Explained):
    """The source and placement of each leaf. Print it to read it as a table.

    `str` merges equal layers in one line and adds totals.

    Attributes:
        rows: One for each leaf.
    """

    rows: tuple[Leaf, ...]

    @property
    def parameters(self) -> int:
        """Number of parameters, summed over the leaves."""
        return sum(math.prod(line.shape) for line in self.rows)

    @property
    def bytes_per_device(self) -> int:
        """Bytes of the parameters on one device."""
        return sum(line.bytes_per_device for line in self.rows)

    def _summary(self) -> str:
        return f"{len(self.rows)} leaves, {self._totals()}"

    def __str__(self) -> str:
        lines = {line.leaf: line for line in self.rows}
        alike = abbreviate((line.leaf, _cells(line)) for line in self.rows)
        rows = [_row(short, [lines[leaf] for leaf in leaves]) for short, leaves in alike.items()]
        return f"{aligned([_TITLES, *rows], numbers=1)}\n{self._totals()}"

    def _totals(self) -> str:
        return f"{self.parameters:,} parameters, {self.bytes_per_device:,} bytes per device"


def explain(
    path: str | Path,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules | None = None,
    allow: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> Explanation:
    """Lists how `load` fills each leaf of a model and places it on `mesh`.

    Reads headers only. The mesh may be abstract, so a plan for many devices needs none of them.

    Args:
        path: Directory with config.json and *.safetensors.
        mesh: Mesh of the placement. None: the default device.
        rules: Placement rules; see `shardings`. None: `RULES`.
        allow: Unknown config.json keys to accept.
        ignore: Patterns of extra tensors to leave out, as for `load`.

    Returns:
        The explanation. Print it as a table.

    Raises:
        FileNotFoundError: config.json or a file is missing.
        ValueError: As for `load`: names, shapes or mesh axes do not fit.

    Example:

        >>> import tempfile
        >>> from dovetail_models import init, llama, save
        >>> path = tempfile.mkdtemp()
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=4, mlp=32)
        >>> save(init(config, seed=0), path)
        >>> explanation = explain(path)
        >>> explanation.rows[0].tensors, explanation.parameters
        ('model.embed_tokens.weight', 4656)
    """
    model, matched = plan(Path(path), rules=rules, allow=allow, ignore=ignore)
    place_on(model, mesh, rules)
    rows = []
    for leaf, param in nnx.to_flat_state(nnx.state(model, WEIGHTS)):
        source, struct = matched.sources[dotted(leaf)], param.get_value()
        place = struct.sharding
        held = struct.shape if place is None else place.shard_shape(struct.shape)
        row = Leaf(
            leaf=dotted(leaf),
            shape=struct.shape,
            dtype=str(struct.dtype),
            tensors=_tensors(source),
            stored=source.tensors[0].stored,
            op=str(source.op),
            spec=None if place is None else place.spec,
            bytes_per_device=math.prod(held) * struct.dtype.itemsize,
        )
        rows.append(row)
    return Explanation(rows=tuple(rows))


def _tensors(source: Source) -> str:
    """Returns the tensor name, with the range of a stack: `experts.{0..7}.w1.weight`."""
    return source.name.replace("{e}", f"{{0..{len(source.tensors) - 1}}}")


def _cells(line: Leaf) -> tuple[str, ...]:
    """Returns the cells of a row except the names. Leaves with equal cells share a row."""
    shape = "x".join(map(str, line.shape))
    spec = "-" if line.spec is None else f"({', '.join(map(str, line.spec))})"
    return (shape, line.dtype, line.stored, line.op, spec)


def _row(leaf: str, lines: list[Leaf]) -> tuple[str, ...]:
    """Returns the row of a group of equal leaves."""
    tensors = ", ".join(abbreviate((line.tensors, None) for line in lines))
    size = sum(line.bytes_per_device for line in lines)
    return (leaf, tensors, *_cells(lines[0]), f"{size:,}")
