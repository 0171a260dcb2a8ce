# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Turns the items of a save into what Orbax stores: trees of arrays, JSON documents, the record."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint import _compat, agree
from dovetail_checkpoint.digest import hex_digests
from dovetail_checkpoint.names import leaf_names
from dovetail_checkpoint.record import (
    RECORD_ITEM,
    Items,
    ObjectItem,
    describe,
    encode,
    json_sha256,
    leaf_dtype,
)
from dovetail_checkpoint.target import Stateful

_RESERVED = _compat.RESERVED_ITEMS | {RECORD_ITEM, "step", "metrics"}


@dataclass(frozen=True, kw_only=True)
class Contents:
    """One commit: Orbax's pytree items and its JSON items, the record among them."""

    trees: dict[str, Any]
    documents: dict[str, Any]


def contents(items: Mapping[str, Any]) -> Contents:
    """Digests the arrays where they lie and asks the objects for their states.

    Returns once the digests are on the host. Raises ValueError for an item's name, TypeError for
    a leaf or a state that cannot be stored.
    """
    _check_names(items)
    objects = {name: item for name, item in items.items() if isinstance(item, Stateful)}
    trees = {name: item for name, item in items.items() if name not in objects}
    states = {name: _state(name, item) for name, item in objects.items()}
    leaves = {name: _leaves(name, tree) for name, tree in trees.items()}
    digests = iter(hex_digests([leaf for name in trees for leaf in leaves[name]]))
    record = Items(
        trees={name: describe(tree, digests=digests) for name, tree in trees.items()},
        objects={name: item for name, (_, item) in states.items()},
    )
    stored = {
        name: jax.tree.map(list(map(_stored, leaves[name])).__getitem__, item.tree)
        for name, item in record.trees.items()
        if jax.tree.leaves(item.tree)  # Orbax refuses a tree without leaves
    }
    documents = {name: document for name, (document, _) in states.items()}
    documents[RECORD_ITEM] = encode(record)
    return Contents(trees=stored, documents=documents)


def _check_names(items: Mapping[str, Any]) -> None:
    if not items:
        raise ValueError("a step must hold at least one item, got none; save(step, model=state)")
    for name in items:
        if not name.isidentifier() or name in _RESERVED:
            raise ValueError(
                "an item's name must be an identifier and none of "
                f"{sorted(_RESERVED)}, got {name!r}; give it another name"
            )


def _leaves(item: str, tree: Any) -> list[Any]:
    names, leaves, _ = leaf_names(tree)
    for name, leaf in zip(names, leaves, strict=True):
        try:
            dtype = leaf_dtype(leaf)
        except TypeError as error:
            raise TypeError(f"{item}/{name}: {error}") from None
        if dtype == "python int" and not -(2**63) <= leaf < 2**63:
            raise ValueError(
                f"{item}/{name}: an int must fit in 64 bits, got {leaf}; "
                "keep it in an object with get_state/set_state"
            )
    return leaves


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
