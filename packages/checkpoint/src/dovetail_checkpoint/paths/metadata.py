# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Description of a path from metadata alone: a run, a step, a tree, or safetensors files."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dovetail_checkpoint import _compat, _elsewhere
from dovetail_checkpoint.layout.mapping import leaf_bytes
from dovetail_checkpoint.layout.source import SourceLeaf
from dovetail_checkpoint.paths.opening import (
    is_safetensors,
    of_paths_that_stay,
    open_source,
    step_and_item,
)
from dovetail_checkpoint.paths.orbax_item import OrbaxItem
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.proof.manifest import MANIFEST_ITEM, Identity, Items, TreeItem
from dovetail_checkpoint.proof.names import match_names
from dovetail_checkpoint.proof.report import DamageError
from dovetail_checkpoint.run import reading
from dovetail_checkpoint.run.steps import (
    SavedStep,
    committed_steps,
    describe_directory,
    described_steps,
    misplacement,
    missing,
    step_directory,
    step_number,
)

# What Orbax keeps beside the items of a step.
_NO_ITEMS = {_compat.METRICS_ITEM, MANIFEST_ITEM}


@dataclass(frozen=True, kw_only=True)
class TreeContents:
    """The leaves of one tree.

    Attributes:
        item: Name in the step; None for an only tree.
        leaves: The leaves, in the writer's order.
    """

    item: str | None
    leaves: tuple[SourceLeaf, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all leaves in memory."""
        return sum(map(leaf_bytes, self.leaves))

    def __repr__(self) -> str:
        return f"TreeContents({self._head()}; print it)"

    def __str__(self) -> str:
        rows = [
            (leaf.name, f"{leaf.dtype}{list(leaf.shape)}", leaf.digest or "no digest")
            for leaf in self.leaves
        ]
        return "\n".join([self._head(), *(f"  {line}" for line in table(rows))])

    def _head(self) -> str:
        head = f"{len(self.leaves)} leaves, {self.bytes} bytes"
        return head if self.item is None else f"{self.item}: {head}"


@dataclass(frozen=True, kw_only=True)
class ObjectContents:
    """The state of one object.

    Attributes:
        item: Its name.
        kind: "shared" if all processes had one state, "per process", or "json" for one of plain
            Orbax; "unread" for another item of plain Orbax, which only Orbax reads.
        sha256: Of its canonical JSON; None if none was recorded.
    """

    item: str
    kind: Literal["shared", "per process", "json", "unread"]
    sha256: str | None

    def __str__(self) -> str:
        if self.kind == "unread":
            return f"{self.item}: an item that only Orbax reads"
        return f"{self.item}: state of an object, {self.kind}, sha256 {self.sha256 or 'unknown'}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One step, one tree without a step, or safetensors files.

    Attributes:
        path: The path.
        writer: "dovetail" with recorded digests, else "orbax" or "safetensors".
        step: The entry of `Store.steps`; None unless the path is a step.
        trees: Its trees.
        objects: Its object states.
        identity: The step and the run in its manifest; None in steps of older versions, of plain
            Orbax, and in safetensors.
        misplaced: The difference if its directory is named as another step, or lies in another run.
    """

    path: Path
    writer: Literal["dovetail", "orbax", "safetensors"]
    step: SavedStep | None
    trees: tuple[TreeContents, ...]
    objects: tuple[ObjectContents, ...]
    identity: Identity | None = None
    misplaced: str | None = None

    def __repr__(self) -> str:
        names = [entry.item or "one tree" for entry in (*self.trees, *self.objects)]
        return f"Checkpoint({str(self.path)!r}: {', '.join(names) or 'no item'}; print it)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        head = f"{self.path}: written by {self.writer}"
        if self.identity is not None:
            head += f" as step {self.identity.step} of run {self.identity.run}"
        if self.step is not None:
            head += f", {', '.join(filter(None, _step_cells(self.step)))}"
        notes = [f"misplaced: {self.misplaced}"] if self.misplaced else []
        return "\n".join([head, *notes, *map(str, self.trees), *map(str, self.objects)])


@dataclass(frozen=True, kw_only=True)
class Run:
    """The committed steps of a run.

    Attributes:
        path: Directory of the run.
        steps: The steps, oldest first.
    """

    path: Path
    steps: tuple[SavedStep, ...]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {len(self.steps)} steps; print it)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        lines = table([_step_cells(step) for step in self.steps])
        return "\n".join([f"{self.path}: a run", *lines])


@_elsewhere.call
@of_paths_that_stay
def inspect(path: str | Path, *, item: str | None = None) -> Run | Checkpoint:
    """Describes the checkpoint at `path`. Reads no array.

    For a step with a manifest, no array file is even opened. Plain Orbax keeps shapes in the same
    database as the arrays.

    Args:
        path: A run, one of its steps, a tree of any Orbax, a safetensors file or a directory of
            them.
        item: Only this tree or object of a step.

    Raises:
        ValueError: There is no checkpoint at `path`.
        DamageError: Its metadata is damaged.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, inspect
        >>> with Store("run") as store:
        ...     store.save(10, model={"w": jnp.ones(3)})
        >>> print(inspect("run/10", item="model"))
        /.../run/10: written by dovetail as step 10 of run ..., step 10, model, ... bytes, checksums
        model: 1 leaves, 12 bytes
          w  float32[3]  46eaa15fc71ef34c
    """
    path = Path(path).absolute()
    if is_safetensors(path):
        return _safetensors(path, item)
    steps = committed_steps(path)
    if steps and item is None:
        return Run(path=path, steps=tuple(described_steps(path)))
    if steps:
        raise ValueError(
            f"an item must be one of a step, got item={item!r} for the run {path}; "
            f"give {step_directory(path, steps[-1])}"
        )
    return _step(path, item)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns the rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _safetensors(path: Path, item: str | None) -> Checkpoint:
    leaves = tuple(open_source(path, item=item).leaves.values())
    proven = bool(leaves) and all(leaf.digest is not None for leaf in leaves)
    return Checkpoint(
        path=path,
        writer="dovetail" if proven else "safetensors",
        step=None,
        trees=(TreeContents(item=None, leaves=leaves),),
        objects=(),
    )


def _step(path: Path, item: str | None) -> Checkpoint:
    path, item = step_and_item(path, item)
    items = _record(path)
    trees, objects = _of_orbax(path) if items is None else _of_record(items)
    names = [entry.item for entry in [*trees, *objects]]
    if item is not None and item not in names:
        raise ValueError(
            f"item must be one of {names} in {path}, got item={item!r}{_example(names)}"
        )
    number = step_number(path)
    stated = items.identity if items else None
    return Checkpoint(
        path=path,
        writer="orbax" if items is None else "dovetail",
        step=None if number is None else describe_directory(path, number),
        trees=tuple(tree for tree in trees if item in (None, tree.item)),
        objects=tuple(state for state in objects if item in (None, state.item)),
        identity=stated,
        misplaced=misplacement(path, stated),
    )


def _example(names: Sequence[str | None]) -> str:
    """Returns the item to give instead, for the end of a message."""
    return f"; give item={names[0]!r}" if names and names[0] else "; leave item out"


def _record(path: Path) -> Items | None:
    """Returns the manifest of a step, or None. Raises ValueError if there is no checkpoint."""
    if None in _compat.tree_names(path):
        return None
    if not _compat.is_checkpoint(path) and not checksums.exists(path):
        raise ValueError(f"there must be a checkpoint, got path={path}{missing(path)}")
    items, problems = reading.read_record(path)
    if problems:
        raise DamageError(path, problems)
    return items


def _of_record(items: Items) -> tuple[list[TreeContents], list[ObjectContents]]:
    trees = [TreeContents(item=name, leaves=_leaves(tree)) for name, tree in items.trees.items()]
    objects = [
        ObjectContents(
            item=name, kind="shared" if state.shared else "per process", sha256=state.sha256
        )
        for name, state in items.objects.items()
    ]
    return trees, objects


def _leaves(tree: TreeItem) -> tuple[SourceLeaf, ...]:
    names = match_names([leaf.name for leaf in tree.leaves])
    return tuple(
        SourceLeaf(name=name, shape=leaf.shape, dtype=leaf.dtype, digest=leaf.digest)
        for name, leaf in zip(names, tree.leaves, strict=True)
    )


def _of_orbax(path: Path) -> tuple[list[TreeContents], list[ObjectContents]]:
    names = _compat.tree_names(path)
    trees = [
        TreeContents(item=name, leaves=tuple(OrbaxItem(path, name).leaves.values()))
        for name in names
    ]
    listed = _compat.item_names(path) if _compat.is_checkpoint(path) else []
    others = [name for name in listed if name not in {*names, *_NO_ITEMS}]
    documents = _compat.document_names(path)
    return trees, [
        ObjectContents(item=name, kind="json" if name in documents else "unread", sha256=None)
        for name in others
    ]


def _step_cells(step: SavedStep) -> tuple[str, ...]:
    return (
        f"step {step.step}",
        ", ".join(step.items) or "no item",
        f"{step.bytes} bytes",
        "checksums" if step.has_checksums else "no checksums",
        ", ".join(f"{name}={value:g}" for name, value in step.metrics.items()),
        f"misplaced: {step.misplaced}" if step.misplaced else "",
    )
