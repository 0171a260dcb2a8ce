# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The items of a save as trees of arrays, JSON documents and the manifest, for Orbax."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint import _compat, agree
from dovetail_checkpoint.digest import begin_digests
from dovetail_checkpoint.manifest import (
    MANIFEST_ITEM,
    Items,
    ObjectItem,
    TreeItem,
    describe,
    encode,
    json_sha256,
)
from dovetail_checkpoint.target import Stateful

_RESERVED = {_compat.METRICS_ITEM, MANIFEST_ITEM, "step"}


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


def contents(items: Mapping[str, Any], metrics: Mapping[str, float | int]) -> Contents:
    """Starts the digests of all arrays, where they lie, and reads the states of all objects.

    Raises:
        ValueError: The name of an item is not allowed.
        TypeError: A leaf or a state cannot be stored.
    """
    _check_names(items)
    objects = {name: item for name, item in items.items() if isinstance(item, Stateful)}
    trees = {name: item for name, item in items.items() if name not in objects}
    described = {name: _described(name, tree) for name, tree in trees.items()}
    leaves = {name: jax.tree.leaves(tree) for name, tree in trees.items()}
    for name, item in described.items():
        _check_numbers(name, item, leaves[name])
    states = {name: _state(name, item) for name, item in objects.items()}
    end = begin_digests([leaf for name in trees for leaf in leaves[name]])

    def manifest() -> dict[str, Any]:
        digests = iter(end())
        digested = {name: item.digested(digests) for name, item in described.items()}
        kept = {name: item for name, (_, item) in states.items()}
        return encode(Items(trees=digested, objects=kept, metrics=metrics))

    stored = {
        name: jax.tree.map(list(map(_stored, leaves[name])).__getitem__, item.tree)
        for name, item in described.items()
        if jax.tree.leaves(item.tree)  # Orbax refuses a tree without leaves
    }
    documents = {name: document for name, (document, _) in states.items()}
    return Contents(trees=stored, documents=documents, manifest=manifest)


def _check_names(items: Mapping[str, Any]) -> None:
    if not items:
        raise ValueError("a step must hold at least one item, got none; save(step, model=state)")
    for name in items:
        if not name.isidentifier() or name in _RESERVED:
            raise ValueError(
                "an item's name must be an identifier and none of "
                f"{sorted(_RESERVED)}, got {name!r}; give it another name"
            )


def _described(name: str, tree: Any) -> TreeItem:
    try:
        return describe(tree)
    except TypeError as error:
        raise TypeError(f"{name}/{error}") from None


def _check_numbers(name: str, item: TreeItem, leaves: list[Any]) -> None:
    for leaf, value in zip(item.leaves, leaves, strict=True):
        if leaf.dtype == "python int" and not -(2**63) <= value < 2**63:
            raise ValueError(
                f"{name}/{leaf.name}: an int must fit in 64 bits, got {value}; "
                "keep it in an object with get_state/set_state"
            )


def _stored(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf


def _state(name: str, item: Stateful) -> tuple[dict[str, Any], ObjectItem]:
    state = item.get_state()
    try:
        survives = isinstance(state, dict) and json.loads(json.dumps(state)) == state
    except (TypeError, ValueError) as error:
        raise TypeError(_state_message(name, state)) from error
    if not survives:
        raise TypeError(_state_message(name, state))
    states = agree.gather(state)
    shared = all(other == state for other in states)
    document = state if shared else {str(i): other for i, other in enumerate(states)}
    return document, ObjectItem(shared=shared, sha256=json_sha256(document))


def _state_message(name: str, state: Any) -> str:
    return (
        "the state of an object must be a dict that JSON returns unchanged (string keys; lists, "
        f"no tuples; finite numbers), got {name}={str(state)[:200]!s}; change its get_state"
    )
