# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""All of Orbax v1, which still sits under `experimental`; tried with orbax-checkpoint 0.12.8.

A step is one directory. Each item of it is a subdirectory, written by Orbax's pytree handler or by
its JSON handler, and Orbax's rename of the temporary directory commits all of them together.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orbax.checkpoint.experimental.v1 as ocp

# Orbax writes to `STEP` + this + an optional stamp, and renames when everything lies on disk.
UNCOMMITTED_SUFFIX = ".orbax-checkpoint-tmp"
# Orbax keeps this name for itself.
RESERVED_ITEMS = frozenset({"metrics"})

# A leaf that Orbax is not to read.
PLACEHOLDER = ocp.PLACEHOLDER

_STEP_METADATA = "_CHECKPOINT_METADATA"
_TREE_METADATA = "_METADATA"


@runtime_checkable
class Response(Protocol):
    """A save that Orbax runs in the background."""

    def result(self, timeout: float | None = None) -> None: ...


def save(
    directory: Path,
    *,
    trees: Mapping[str, Any],
    documents: Mapping[str, Any],
    compress: bool,
    timeout_s: float,
) -> Response:
    """Starts the commit of `trees` (pytrees of arrays) and `documents` (JSON) into `directory`.

    Returns when every array may be donated. A dict of numbers is a valid pytree too, and Orbax
    would store it as arrays: the JSON handler is therefore bound to each document by its name.
    """
    registry = ocp.handlers.local_registry()
    for name in documents:
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.array.saving.use_compression = compress
    context.asynchronous.timeout_secs = max(1, round(timeout_s))
    with context:
        return ocp.save_checkpointables_async(str(directory), {**trees, **documents})


def load(directory: Path, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the items named by `targets`: trees of abstract leaves."""
    return ocp.load_checkpointables(str(directory), dict(targets)) if targets else {}


def load_tree(directory: Path, item: str | None, target: Any) -> Any:
    """Reads one item, or with None the tree that lies in `directory` itself (Orbax v0).

    Leaves that are PLACEHOLDER in `target` are not read.
    """
    return ocp.load(str(directory), target, checkpointable_name=item)


def tree_metadata(directory: Path, item: str | None) -> Any:
    """The tree of an item that any Orbax wrote: leaves with shape and dtype, or Python values."""
    return ocp.metadata(str(directory), checkpointable_name=item).metadata


def tree_names(directory: Path) -> list[str | None]:
    """The items of a step that are trees; [None] if the directory itself is one (Orbax v0)."""
    if (directory / _TREE_METADATA).exists():
        return [None]
    return sorted(path.parent.name for path in directory.glob(f"*/{_TREE_METADATA}"))


def key_implementations(directory: Path) -> dict[str, str]:
    """The random generator of each leaf that holds typed keys, by Orbax's dotted name."""
    found = {}
    for path in directory.glob("array_metadatas/process_*"):
        for entry in json.loads(path.read_text(encoding="utf-8"))["array_metadatas"]:
            array = entry["array_metadata"]
            if array["ext_metadata"]:
                found[array["param_name"]] = array["ext_metadata"]["random_key_impl"]
    return found


def load_document(directory: Path, name: str) -> Any:
    """Reads one JSON item. Plain file access: on damage it names the file, which Orbax does not."""
    with open(document_path(directory, name), encoding="utf-8") as file:
        return json.load(file)


def document_path(directory: Path, name: str) -> Path:
    """The file in which Orbax's JSON handler keeps the item `name`."""
    return directory / name / "data.json"


def item_names(directory: Path) -> list[str]:
    """The items that a committed step holds; none if it is one tree without a name (Orbax v0)."""
    with open(directory / _STEP_METADATA, encoding="utf-8") as file:
        handlers = json.load(file)["item_handlers"]
    return sorted(handlers) if isinstance(handlers, dict) else []


def is_checkpoint(directory: Path) -> bool:
    """Whether Orbax committed a step, or a tree of its own, here."""
    return (directory / _STEP_METADATA).is_file()
