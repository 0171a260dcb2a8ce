# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of plain Orbax, v0 or v1, described as the manifest describes ours.

Orbax's metadata has names, shapes and dtypes, so targets are compared with them before any read:
Orbax itself casts in silence to the dtype that is asked for. There are no digests.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail_checkpoint import _compat
from dovetail_checkpoint.layout import target
from dovetail_checkpoint.proof.manifest import Items, Leaf, ObjectItem, TreeItem
from dovetail_checkpoint.proof.names import leaf_names, orbax_name

_KEY_DTYPES = {implementation: dtype for dtype, implementation in target.KEYS.items()}
_UNREAD = TreeItem(tree=None, leaves=())


def described_items(directory: Path, targets: Mapping[str, Any]) -> Items:
    """Returns the items of a step: trees, and JSON documents as states of objects.

    Args:
        directory: The step. A step that is one tree without a name has it under any name.
        targets: As for `Store.restore`. The leaves of other trees are left out. An object takes a
            tree too, if it holds numbers and texts alone: Orbax v1 stores a dict in this way.

    Raises:
        Exception: The metadata cannot be read; Orbax raises many types.
    """
    names = _compat.tree_names(directory)
    if names == [None]:
        tree = described_tree(directory, None)
        return Items(trees=dict.fromkeys(targets, tree), objects={})
    trees = {
        name: described_tree(directory, name) if name in targets else _UNREAD
        for name in names
        if name is not None
    }
    documents = set(_compat.document_names(directory))
    for name in trees.keys() & targets.keys():
        if isinstance(targets[name], target.Stateful) and _is_plain(trees[name]):
            documents.add(name)
    objects = {name: ObjectItem(shared=True, sha256=None) for name in documents}
    return Items(
        trees={name: tree for name, tree in trees.items() if name not in documents},
        objects=objects,
    )


def document(directory: Path, name: str) -> Any:
    """Returns the state of an object: a JSON item, or a tree of numbers and texts."""
    if name not in _compat.tree_names(directory):
        return _compat.load_document(directory, name)
    tree = described_tree(directory, name)
    asked = [target.as_saved(leaf) for leaf in tree.leaves]
    return _compat.load_tree(directory, name, jax.tree.map(asked.__getitem__, tree.tree))


def _is_plain(tree: TreeItem) -> bool:
    return all(leaf.dtype.startswith("python ") for leaf in tree.leaves)


def described_tree(directory: Path, item: str | None) -> TreeItem:
    """Returns one tree by Orbax's metadata.

    Args:
        directory: The step.
        item: Name of the tree; None for the only tree of the step.

    Raises:
        Exception: The metadata cannot be read; Orbax raises many types.
    """
    tree = _compat.tree_metadata(directory, item)
    keys = _compat.key_implementations(directory / (item or ""))
    names, entries, structure = leaf_names(tree)
    leaves = tuple(
        _leaf(name, leaf, keys.get(orbax_name(name)))
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
