# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""All uses of Orbax: v1, still in `experimental`, and v0 where v1 cannot read. Tried with
orbax-checkpoint 0.12.8.

A step is one directory. Each item is a subdirectory, written by Orbax's pytree handler or by its
JSON handler. Orbax commits all of them together when it renames the temporary directory.
"""

import asyncio
import functools
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import orbax.checkpoint as v0
import orbax.checkpoint.experimental.v1 as ocp
import uvloop  # of Orbax

from dovetail_checkpoint.proof import agree
from dovetail_checkpoint.proof.manifest import MANIFEST_ITEM

_logger = logging.getLogger(__name__)
# Orbax writes to `STEP` + this + an optional stamp, and renames when everything lies on disk.
UNCOMMITTED_SUFFIX = ".orbax-checkpoint-tmp"
# The item in which Orbax keeps the metrics of a step.
METRICS_ITEM = "metrics"

# A leaf that Orbax is not to read.
PLACEHOLDER = ocp.PLACEHOLDER

STEP_METADATA = "_CHECKPOINT_METADATA"
_TREE_METADATA = "_METADATA"
# The file of a JSON item, in v1 and in v0.
_DOCUMENT, _V0_DOCUMENT = "data.json", "metadata"
# Names in a step that Orbax reads itself; no item may have one.
STEP_FILES = (STEP_METADATA, _TREE_METADATA)


@runtime_checkable
class Response(Protocol):
    """A save running in the background of Orbax."""

    def result(self, timeout: float | None = None) -> None:
        """Waits for the save. Raises its error, or TimeoutError after `timeout` seconds."""


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
    """Starts the commit of a step and returns as soon as every array may be donated.

    A dict of numbers is also a valid pytree, and Orbax would store it as arrays. Each document is
    therefore bound by name to the JSON handler.

    Args:
        directory: Directory of the new step.
        trees: Pytrees of arrays by item name.
        documents: JSON values by item name.
        manifest: Makes the manifest's document. Called in the background; the commit waits for it.
        metrics: Numbers by name, stored in Orbax's item for metrics.
        compress: Compress arrays with zstd.
        timeout_s: Limit for the whole write, in seconds.

    Returns:
        The running save.
    """
    registry = ocp.handlers.local_registry()
    registry.add(_ManifestHandler, checkpointable_name=MANIFEST_ITEM)
    for name in documents:
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.array.saving.use_compression = compress
    context.array.saving.ocdbt_target_data_file_size = _file_bytes(trees)
    context.asynchronous.timeout_secs = max(1, round(timeout_s))
    items = {**trees, **documents, MANIFEST_ITEM: _Manifest(make=manifest, metrics=metrics)}
    with context:
        return ocp.save_checkpointables_async(str(directory), items)


def _file_bytes(trees: Mapping[str, Any]) -> int:
    """Returns the size of a process's data files: 16 of them, so that several are hashed at once.

    Orbax's own is 2 GB, with which most steps have one file.
    """
    total = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(dict(trees)))
    return min(max(total // jax.process_count() // 16, 16 << 20), 1 << 30)


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """The manifest's document, made later, and the metrics."""

    make: Callable[[], Any]
    metrics: Mapping[str, float | int]


class _ManifestHandler:
    """Orbax's JSON handler for a document made while the arrays are written.

    It uses the name of Orbax's handler, stored beside the item, so any Orbax can read the item. It
    also writes the metrics: Orbax reserves that item for its own Checkpointer, and the Checkpointer
    would write the arrays through an older path.
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
    if tree_names(directory) == [None]:
        return {name: load_tree(directory, None, tree) for name, tree in targets.items()}
    with _alone():
        return ocp.load_checkpointables(str(directory), dict(targets))


def load_tree(directory: Path, item: str | None, target: Any) -> Any:
    """Reads one tree.

    Args:
        directory: Directory of the step.
        item: Name of the tree; None for a tree in `directory` itself (Orbax v0).
        target: Abstract leaves. A leaf is skipped if it is PLACEHOLDER.

    Returns:
        The tree in the structure of `target`.
    """
    with _alone():
        return ocp.load(str(directory), target, checkpointable_name=item)


@contextmanager
def _alone() -> Iterator[None]:
    """A context without barriers: each process reads its own shards.

    With barriers, a failing process leaves the others waiting in Orbax for five minutes; then jax
    ends all of them.
    """
    context = ocp.Context()
    context.multiprocessing.active_processes = {jax.process_index()}
    context.multiprocessing.primary_host = jax.process_index()
    _use_patient_loops()
    token = object()
    _reads.add(token)
    try:
        with context:
            yield
    finally:
        _reads.discard(token)


_reads: set[object] = set()  # under way, on any thread: in a notebook Orbax reads on one of its own


class _PatientLoop(uvloop.Loop):
    """An event loop that finishes the reads of Orbax after one of them failed.

    Orbax closes the loop at the first error. Each other read, of hundreds in a step that is deleted
    meanwhile, would then print a traceback. The first error is the one that Orbax raises.
    """

    def close(self) -> None:
        if not self.is_closed():
            rest = asyncio.all_tasks(self)
            self.run_until_complete(asyncio.wait(rest) if rest else asyncio.sleep(0))
        super().close()

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            _logger.debug("a read ended after the error of another, and nobody awaits it")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        _logger.debug("after a failed read: %s", context.get("exception"))


@functools.cache
def _use_patient_loops() -> None:
    """Lets Orbax read in a patient loop: it makes one by `uvloop.new_event_loop`."""
    usual = uvloop.new_event_loop

    def new_event_loop() -> uvloop.Loop:
        return _PatientLoop() if _reads else usual()

    uvloop.new_event_loop = new_event_loop


def tree_metadata(directory: Path, item: str | None) -> Any:
    """Returns the tree of an item of any Orbax: leaves with shape and dtype, or Python values."""
    metadata = ocp.metadata(str(directory), checkpointable_name=item).metadata
    if metadata is None:  # Orbax logs what it cannot read; v1 cannot read a Python bool
        described = v0.PyTreeCheckpointer().metadata(directory / (item or "")).item_metadata
        if described is None:
            raise ValueError("Orbax cannot read it, and logs why")
        metadata = jax.tree.map(_python_value, described.tree)
    return metadata


def _python_value(leaf: Any) -> Any:
    """Returns a value of the type of a number or text that v0 describes; an array's metadata."""
    if isinstance(leaf, v0.metadata.value.StringMetadata):
        return ""
    if isinstance(leaf, v0.metadata.value.ScalarMetadata):
        return np.zeros((), leaf.dtype).item()
    return leaf


def tree_names(directory: Path) -> list[str | None]:
    """Returns the trees of a step; [None] if the directory itself is a tree (Orbax v0)."""
    if os.path.exists(directory / _TREE_METADATA):  # False too if the directory cannot be read
        return [None]
    names: list[str | None] = [p.parent.name for p in directory.glob(f"*/{_TREE_METADATA}")]
    return sorted(names, key=str)


def key_implementations(directory: Path) -> dict[str, str]:
    """Returns the random generator of each leaf of typed keys, by Orbax's dotted name."""
    implementations = {}
    for path in directory.glob("array_metadatas/process_*"):
        for entry in _read_json(path)["array_metadatas"]:
            array = entry["array_metadata"]
            if array["ext_metadata"]:
                implementations[array["param_name"]] = array["ext_metadata"]["random_key_impl"]
    return implementations


def load_document(directory: Path, name: str) -> Any:
    """Reads one JSON item. Uses plain file access: its errors name the file, unlike Orbax's."""
    return _read_json(document_path(directory, name))


def load_metrics(directory: Path) -> Any:
    """Returns the metrics of a step of any Orbax, or None."""
    path = directory / METRICS_ITEM / METRICS_ITEM
    return _read_json(path) if path.exists() else None


def document_path(directory: Path, name: str) -> Path:
    """Returns the file of the JSON item `name`: that of Orbax v0 only if it alone is there."""
    path, older = directory / name / _DOCUMENT, directory / name / _V0_DOCUMENT
    return older if os.path.isfile(older) and not os.path.isfile(path) else path


def document_names(directory: Path) -> list[str]:
    """Returns the JSON items of a step of any Orbax, except for the metrics."""
    files = [*directory.glob(f"*/{_DOCUMENT}"), *directory.glob(f"*/{_V0_DOCUMENT}")]
    return sorted({path.parent.name for path in files} - {METRICS_ITEM, MANIFEST_ITEM})


def item_names(directory: Path) -> list[str]:
    """Returns the items of a committed step; none for a tree without a name (Orbax v0)."""
    handlers = _read_json(directory / STEP_METADATA)["item_handlers"]
    return sorted(handlers) if isinstance(handlers, dict) else []


def is_checkpoint(directory: Path) -> bool:
    """True if Orbax committed a step, or a tree of its own, here."""
    return os.path.isfile(directory / STEP_METADATA)  # False too if it may not be read


def _read_json(path: Path) -> Any:
    """Reads a JSON file. Raises ValueError or OSError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def finish_without_new_threads() -> None:
    """Lets running saves finish after the end of the script.

    Python 3.12 and later start no thread from then on, and Orbax awaits each file operation in a
    new thread of a pool (`asyncio.to_thread`). The operations then run where they are awaited.
    """

    async def to_thread(work: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        return work(*args, **options)

    if sys.version_info >= (3, 12):
        asyncio.to_thread = to_thread
