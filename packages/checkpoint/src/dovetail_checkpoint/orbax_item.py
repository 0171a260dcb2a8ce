# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One tree of an Orbax checkpoint as a source of leaves: ours, plain v1, v0, with or without OCDBT.

The manifest of our steps has names, dtypes and digests. For other steps Orbax's metadata gives
names and shapes; its array metadata tells typed keys.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint import _compat, checksums, reading, target
from dovetail_checkpoint.manifest import Leaf, TreeItem
from dovetail_checkpoint.names import leaf_names, match_names
from dovetail_checkpoint.report import DamageError, Problem
from dovetail_checkpoint.retention import missing
from dovetail_checkpoint.source import SourceLeaf, Value

_KEY_DTYPES = {implementation: dtype for dtype, implementation in target.KEYS.items()}


class OrbaxItem:
    """A Source over one item of a step.

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
                return items.trees[self.item]
        try:
            tree = _compat.tree_metadata(self.path, self.item)
            keys = _compat.key_implementations(self.path / (self.item or ""))
        except Exception as error:  # Orbax raises many types for damaged metadata
            problem = Problem(
                where=self.item or ".", reason=f"its metadata cannot be read ({error!r})"
            )
            raise DamageError(self.path, [problem, *checksums.check(self.path)]) from error
        return _of_metadata(tree, keys)


def _chosen(path: Path, item: str | None) -> str | None:
    trees = _compat.tree_names(path)
    if item in trees:
        return item
    if item is None and len(trees) == 1:
        return trees[0]
    listed = [name for name in trees if name]
    if item is None and listed:
        raise ValueError(f"item must say which of {listed} in {path}, got None; item={listed[0]!r}")
    if not listed:
        raise ValueError(f"there must be a tree of arrays, got path={path}{missing(path)}")
    raise ValueError(f"item must be one of {listed} in {path}, got item={item!r}; name one")


def _of_metadata(tree: Any, keys: Mapping[str, str]) -> TreeItem:
    names, entries, structure = leaf_names(tree)
    implementations = {match_names([name])[0]: key for name, key in keys.items()}
    leaves = tuple(
        _leaf(name, leaf, implementations.get(name))
        for name, leaf in zip(names, entries, strict=True)
    )
    return TreeItem(tree=structure.unflatten(range(len(leaves))), leaves=leaves)


def _leaf(name: str, leaf: Any, implementation: str | None) -> Leaf:
    if isinstance(leaf, bool | int | float | str | bytes):
        return Leaf(name=name, dtype=f"python {type(leaf).__name__}", shape=(), digest=None)
    shape, dtype = tuple(leaf.shape), str(leaf.dtype)
    if implementation is not None:
        # The words of a key are the last axis of what lies on disk.
        shape, dtype = shape[:-1], _KEY_DTYPES[implementation]
    return Leaf(name=name, dtype=dtype, shape=shape, digest=None)


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
