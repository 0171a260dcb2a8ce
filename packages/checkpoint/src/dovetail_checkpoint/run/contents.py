# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The items of a save as trees of arrays, JSON documents and the manifest, for Orbax."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint.layout.target import Stateful
from dovetail_checkpoint.proof import agree
from dovetail_checkpoint.proof.digest import begin_digests
from dovetail_checkpoint.proof.manifest import (
    Identity,
    Items,
    ObjectItem,
    TreeItem,
    describe,
    encode,
    json_sha256,
)
from dovetail_checkpoint.run import storable


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Items that can be stored.

    Attributes:
        trees: The description of each pytree.
        leaves: The leaves of each pytree, in the order of its description.
        states: Copies of the states of the objects.
    """

    trees: Mapping[str, TreeItem]
    leaves: Mapping[str, list[Any]]
    states: Mapping[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """One commit.

    Attributes:
        trees: Orbax's pytree items by name.
        documents: Its JSON items by name.
        manifest: Waits for the digests and returns the manifest's document.
    """

    trees: dict[str, Any]
    documents: dict[str, Any]
    manifest: Callable[[], dict[str, Any]]


def check(items: Mapping[str, Any]) -> Checked:
    """Checks all items and copies the states of the objects. Starts nothing.

    Raises:
        ValueError: A name or a leaf is not allowed.
        TypeError: A leaf or a state cannot be stored.
    """
    storable.check_names(items)
    objects = {name: item for name, item in items.items() if isinstance(item, Stateful)}
    trees = {name: item for name, item in items.items() if name not in objects}
    described = {name: _described(name, tree) for name, tree in trees.items()}
    leaves = {name: jax.tree.leaves(tree) for name, tree in trees.items()}
    for name, item in described.items():
        storable.check_tree(name, item, leaves[name])
    states = {name: storable.copied_state(name, item.get_state()) for name, item in objects.items()}
    return Checked(trees=described, leaves=leaves, states=states)


def contents(
    checked: Checked, *, metrics: Mapping[str, float | int], identity: Identity
) -> Contents:
    """Starts the digests of all arrays, on their devices, and agrees on the states of all objects.

    Args:
        checked: The items.
        metrics: Numbers by name.
        identity: The step.

    Returns:
        The commit.
    """
    leaves = {name: list(map(_stored, values)) for name, values in checked.leaves.items()}
    states = {name: _shared(state) for name, state in checked.states.items()}
    end = begin_digests([leaf for name in checked.trees for leaf in leaves[name]])

    def manifest() -> dict[str, Any]:
        digests = iter(end())
        trees = {name: item.digested(digests) for name, item in checked.trees.items()}
        objects = {name: item for name, (_, item) in states.items()}
        return encode(Items(trees=trees, objects=objects, metrics=metrics, identity=identity))

    stored = {
        name: jax.tree.map(leaves[name].__getitem__, item.tree)
        for name, item in checked.trees.items()
        if jax.tree.leaves(item.tree)  # Orbax refuses a tree without leaves
    }
    documents = {name: document for name, (document, _) in states.items()}
    return Contents(trees=stored, documents=documents, manifest=manifest)


def _described(name: str, tree: Any) -> TreeItem:
    try:
        return describe(tree)
    except TypeError as error:
        raise TypeError(f"{name}/{error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except (RecursionError, SystemError) as error:  # jax raises the second from C++
        raise storable.too_deep(name, "a tree deeper than Python's recursion") from error


def _stored(leaf: Any) -> Any:
    if isinstance(leaf, np.generic):
        return np.asarray(leaf)
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        return leaf.astype(leaf.dtype.newbyteorder("="))
    return leaf


def _shared(state: dict[str, Any]) -> tuple[dict[str, Any], ObjectItem]:
    states = agree.gather(state)
    shared = all(other == state for other in states)
    document = state if shared else {str(i): other for i, other in enumerate(states)}
    return document, ObjectItem(shared=shared, sha256=json_sha256(document))
