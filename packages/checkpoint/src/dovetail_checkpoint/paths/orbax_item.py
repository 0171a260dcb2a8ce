# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One tree of an Orbax checkpoint as a source of leaves: ours, plain v1, v0, with or without OCDBT.

The manifest of our steps has names, dtypes and digests. Other steps are described by Orbax's
metadata (foreign.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint import _compat, transfers
from dovetail_checkpoint.layout import target
from dovetail_checkpoint.layout.source import SourceLeaf, Value
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.proof.manifest import Identity, Leaf, TreeItem
from dovetail_checkpoint.proof.names import match_names
from dovetail_checkpoint.proof.report import DamageError, Problem
from dovetail_checkpoint.run import foreign, reading
from dovetail_checkpoint.run.steps import misplacement, missing


class OrbaxItem:
    """A Source over one item of a step. `identity` is that of the step, if its manifest has it.

    Args:
        path: Directory of the step.
        item: Name of the item; None for the only tree of the step.

    Raises:
        ValueError: There is no such item.
        DamageError: The metadata cannot be read.
    """

    def __init__(self, path: Path, item: str | None = None) -> None:
        self.path = path
        self.item = _chosen(path, item)
        self.identity: Identity | None = None
        self._tree = self._described()
        names = match_names([leaf.name for leaf in self._tree.leaves])
        self._by_name = dict(zip(names, self._tree.leaves, strict=True))
        self.leaves = {
            name: SourceLeaf(name=name, shape=leaf.shape, dtype=leaf.dtype, digest=leaf.digest)
            for name, leaf in self._by_name.items()
        }

    def read(self, places: Mapping[str, jax.sharding.Sharding | None]) -> dict[str, Value]:
        """See Source.read. Leaves that are not named are not opened."""
        wanted = {name: _target(self._by_name[name], place) for name, place in places.items()}
        transfers.check(wanted)
        asked = [
            _compat.PLACEHOLDER
            if name not in wanted
            else target.abstract_leaf(self._by_name[name], wanted[name])
            for name in self._by_name
        ]
        stored = set(jax.tree.leaves(self._tree.tree))
        # The others are arrays without elements: nothing of them lies on disk.
        values = {
            name: target.empty(wanted[name])
            for i, name in enumerate(self._by_name)
            if name in wanted and i not in stored
        }
        if len(values) < len(wanted):
            tree = jax.tree.map(asked.__getitem__, self._tree.tree)
            loaded = jax.tree.leaves(_compat.load_tree(self.path, self.item, tree))
            names = list(self._by_name)
            for i, leaf in zip(jax.tree.leaves(self._tree.tree), loaded, strict=True):
                if names[i] in wanted:
                    values[names[i]] = target.finish(leaf, wanted[names[i]])
        return {name: values[name] for name in places}

    @property
    def note(self) -> str | None:
        """The difference if the directory is named as another step, or lies in another run."""
        return misplacement(self.path, self.identity)

    def damaged_files(self, names: list[str]) -> list[Problem]:
        """Returns the files that differ from the step's checksums: a file of Orbax holds many
        leaves.
        """
        if checksums.exists(self.path):
            return checksums.check(self.path)
        return [
            Problem(where=checksums.SHA256SUMS, reason="is not there to tell which file is damaged")
        ]

    def _described(self) -> TreeItem:
        # A tree that is no item of a step has no manifest beside it.
        if self.item is not None:
            items, problems = reading.read_record(self.path)
            if problems:
                raise DamageError(self.path, [*problems, *checksums.check(self.path)])
            if items is not None and self.item in items.trees:
                self.identity = items.identity
                return items.trees[self.item]
        try:
            return foreign.described_tree(self.path, self.item)
        except Exception as error:  # Orbax raises many types for damaged metadata
            problem = Problem(
                where=self.item or ".", reason=f"its metadata cannot be read ({error!r})"
            )
            raise DamageError(self.path, [problem, *checksums.check(self.path)]) from error


def _chosen(path: Path, item: str | None) -> str | None:
    trees = _compat.tree_names(path)
    if item in trees:
        return item
    if item is None and len(trees) == 1:
        return trees[0]
    listed = [name for name in trees if name]
    if item is None and listed:
        raise ValueError(
            f"item must say which of {listed} in {path}, got item=None; give item={listed[0]!r}"
        )
    if not listed:
        raise ValueError(f"there must be a tree of arrays, got path={path}{missing(path)}")
    raise ValueError(
        f"item must be one of {listed} in {path}, got item={item!r}; give item={listed[0]!r}"
    )


def _target(leaf: Leaf, place: jax.sharding.Sharding | None) -> Any:
    """Returns the leaf as saved, with the sharding `place`; keys and numbers have one form."""
    if leaf.dtype in ("python str", "python bytes"):
        raise ValueError(
            f"a leaf that is read must be an array, key or number, got {leaf.name}: {leaf.dtype}; "
            f'drop("{leaf.name}")'
        )
    as_saved = target.as_saved(leaf)
    if place is None or not isinstance(as_saved, np.ndarray | jax.ShapeDtypeStruct):
        return as_saved
    return jax.ShapeDtypeStruct(as_saved.shape, as_saved.dtype, sharding=place)
