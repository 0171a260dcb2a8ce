# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of leaves, and the plain tree of dicts and lists stored on disk.

On disk the name of a leaf is its path, `layers/0/kernel/value`, escaped as a JSON pointer (RFC
6901, without the leading slash). A list index and the dict key of the same digits give the same
name, so a tuple may be restored into a dict and back. Users read and write `layers.0.kernel`
(`match_names`, and the patterns of _patterns.py).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    SequenceKey,
)


def leaf_names(tree: Any) -> tuple[list[str], list[Any], Any]:
    """Returns the name of each leaf, the leaves, and the structure to rebuild the tree.

    Raises:
        ValueError: Two leaves have one name (the keys 0 and "0" of one dict).
    """
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [leaf_name(path) for path, _ in paths_and_leaves]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"the leaves of an item must have different names, got {twice} more than once; "
            "rename a key (the keys 0 and '0' of one dict are the same name)"
        )
    return names, [leaf for _, leaf in paths_and_leaves], structure


def leaf_name(path: tuple[Any, ...]) -> str:
    """Returns the path as a JSON pointer without its first slash; '' for a tree of one leaf."""
    return "/".join(_key(entry).replace("~", "~0").replace("/", "~1") for entry in path)


def orbax_name(name: str) -> str:
    """Returns the name under which Orbax stores a leaf: its levels, unescaped, joined by dots."""
    return name.replace("/", ".").replace("~1", "/").replace("~0", "~")


def match_names(names: Sequence[str]) -> list[str]:
    """Returns the names shown to users and matched by patterns: `layers.0.kernel`, for every
    writer.

    Slashes become dots, as in safetensors files. A last `value` without siblings is left out:
    flax.nnx.State ends each path with this attribute of the variable.

    Raises:
        ValueError: Two names become one.
    """
    paths = [name.replace("/", ".") for name in names]
    children = Counter(prefix for path in paths for prefix in _prefixes(path))
    matched = [
        parent if child == "value" and parent and children[parent] == 1 else path
        for path in paths
        for parent, _, child in [path.rpartition(".")]
    ]
    twice = [name for name, number in Counter(matched).items() if number > 1]
    if twice:
        both = [name for name, match in zip(names, matched, strict=True) if match == twice[0]]
        raise ValueError(
            "leaves must have different names when slashes are read as dots, got "
            f"{both}; rename one of them where they are written"
        )
    return matched


def _prefixes(path: str) -> list[str]:
    segments = path.split(".")
    return [".".join(segments[:i]) for i in range(len(segments))]


def shown_names(names: Sequence[str]) -> list[str]:
    """Returns `match_names` for messages; the names on disk if two would become one."""
    try:
        return match_names(names)
    except ValueError:
        return list(names)


def plain(tree: Any, each: Callable[[Any], Any]) -> Any:
    """Returns the tree as nested dicts and lists, as Orbax writes it, with each(leaf) for a leaf.

    `each` is called in the order of `leaf_names`. Tuples and nodes without field names become
    lists; named tuples, dataclasses and other nodes become dicts keyed by field; None and nodes
    without children become None, except empty dicts and lists.
    """
    if jax.tree_util.all_leaves([tree]):
        return each(tree)
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if not children:
        return type(tree)() if type(tree) in (dict, list) else None
    entries = [path[0] for path, _ in children]
    values = [plain(value, each) for _, value in children]
    if all(isinstance(entry, SequenceKey | FlattenedIndexKey) for entry in entries):
        return values
    return dict(zip(map(_key, entries), values, strict=True))


def _key(entry: Any) -> str:
    match entry:
        case DictKey(key) | FlattenedIndexKey(key):
            return str(key)
        case SequenceKey(index):
            return str(index)
        case GetAttrKey(name):
            return name
        case _:  # nodes may bring key classes of their own
            return str(entry)
