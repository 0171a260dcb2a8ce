# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""All of Orbax v1, which still sits under `experimental`; tried with orbax-checkpoint 0.12.8.

A step is one directory. Each item of it is a subdirectory, written by Orbax's pytree handler or by
its JSON handler, and Orbax's rename of the temporary directory commits all of them together.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import orbax.checkpoint.experimental.v1 as ocp

from dovetail_checkpoint import agree
from dovetail_checkpoint.manifest import MANIFEST_ITEM

# Orbax writes to `STEP` + this + an optional stamp, and renames when everything lies on disk.
UNCOMMITTED_SUFFIX = ".orbax-checkpoint-tmp"
# The item in which Orbax keeps the metrics of a step.
METRICS_ITEM = "metrics"

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
    manifest: Callable[[], Any],
    metrics: Mapping[str, float | int],
    compress: bool,
    timeout_s: float,
) -> Response:
    """Starts the commit of `trees` (pytrees of arrays) and `documents` (JSON) into `directory`.

    Returns when every array may be donated. `manifest` is called in the background, and the commit
    waits for its document. A dict of numbers is a valid pytree too, and Orbax would store it as
    arrays: the JSON handler is therefore bound to each document by its name.
    """
    registry = ocp.handlers.local_registry()
    registry.add(_ManifestHandler, checkpointable_name=MANIFEST_ITEM)
    for name in documents:
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.array.saving.use_compression = compress
    context.asynchronous.timeout_secs = max(1, round(timeout_s))
    items = {**trees, **documents, MANIFEST_ITEM: _Manifest(make=manifest, metrics=metrics)}
    with context:
        return ocp.save_checkpointables_async(str(directory), items)


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    make: Callable[[], Any]
    metrics: Mapping[str, float | int]


class _ManifestHandler:
    """Orbax's JSON handler for a document that is made while the arrays are written.

    It goes under that handler's name, which Orbax writes beside the item: any Orbax reads it then.
    The metrics come with it, since Orbax takes no item of that name from others than its own
    Checkpointer, which would also write the arrays by an older path.
    """

    __module__ = ocp.handlers.JsonHandler.__module__
    __qualname__ = ocp.handlers.JsonHandler.__qualname__

    async def save(self, directory: Any, checkpointable: _Manifest) -> Awaitable[None]:
        return self._save_in_background(directory, checkpointable)

    async def _save_in_background(self, directory: Any, manifest: _Manifest) -> None:
        document = await asyncio.to_thread(manifest.make)
        await (await ocp.handlers.JsonHandler().save(directory, document))
        if manifest.metrics and agree.is_primary():
            step = Path(await directory.await_creation()).parent
            (step / METRICS_ITEM).mkdir()
            (step / METRICS_ITEM / METRICS_ITEM).write_text(json.dumps(dict(manifest.metrics)))

    async def load(self, directory: Any, abstract_checkpointable: None = None) -> Awaitable[Any]:
        return await ocp.handlers.JsonHandler().load(directory, abstract_checkpointable)

    async def metadata(self, directory: Any) -> None:
        return None

    def is_handleable(self, checkpointable: Any) -> bool:
        return isinstance(checkpointable, _Manifest)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return None


def load(directory: Path, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the items named by `targets`: trees of abstract leaves."""
    if not targets:
        return {}
    with _alone():
        return ocp.load_checkpointables(str(directory), dict(targets))


def load_tree(directory: Path, item: str | None, target: Any) -> Any:
    """Reads one item, or with None the tree that lies in `directory` itself (Orbax v0).

    Leaves that are PLACEHOLDER in `target` are not read.
    """
    with _alone():
        return ocp.load(str(directory), target, checkpointable_name=item)


def _alone() -> ocp.Context:
    """Without barriers: each process reads its own shards.

    One that fails would leave the others waiting in Orbax for five minutes, after which jax ends
    all of them.
    """
    context = ocp.Context()
    context.multiprocessing.active_processes = {jax.process_index()}
    context.multiprocessing.primary_host = jax.process_index()
    return context


def tree_metadata(directory: Path, item: str | None) -> Any:
    """The tree of an item that any Orbax wrote: leaves with shape and dtype, or Python values."""
    found = ocp.metadata(str(directory), checkpointable_name=item).metadata
    if found is None:  # Orbax logs what it cannot read, and goes on without it
        raise ValueError("Orbax cannot read it, and logs why")
    return found


def tree_names(directory: Path) -> list[str | None]:
    """The items of a step that are trees; [None] if the directory itself is one (Orbax v0)."""
    if (directory / _TREE_METADATA).exists():
        return [None]
    names: list[str | None] = [p.parent.name for p in directory.glob(f"*/{_TREE_METADATA}")]
    return sorted(names, key=str)


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


def load_metrics(directory: Path) -> Any:
    """The metrics of a step that any Orbax wrote; None if it has none."""
    path = directory / METRICS_ITEM / METRICS_ITEM
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


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
