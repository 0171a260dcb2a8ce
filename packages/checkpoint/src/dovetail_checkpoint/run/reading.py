# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reading and proof of one step, leaf by leaf and file by file."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from dovetail_checkpoint import _compat
from dovetail_checkpoint.layout import target
from dovetail_checkpoint.proof import agree, checksums
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.manifest import (
    MANIFEST_ITEM,
    DamagedManifestError,
    Items,
    Leaf,
    ObjectItem,
    TreeItem,
    decode,
    json_sha256,
)
from dovetail_checkpoint.proof.names import leaf_names, shown_names
from dovetail_checkpoint.proof.report import Problem, StepReport
from dovetail_checkpoint.run import foreign
from dovetail_checkpoint.run.steps import identity_problems, is_ours, step_directory


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A target for each leaf of each tree, in the order of the manifest, and the objects.

    `asked` has Orbax's targets for the same leaves.
    """

    trees: Mapping[str, list[Any]]
    asked: Mapping[str, list[Any]]
    objects: list[str]


@dataclass(frozen=True, kw_only=True)
class _Values:
    """The values read, in the order of `_Wanted`."""

    trees: Mapping[str, list[Any]]
    objects: Mapping[str, dict[str, Any]]


# Errors of a damaged manifest; one nested too deeply for its checksum is damaged too.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, DamagedManifestError)
_NOTHING = Items(trees={}, objects={})
_NO_VALUES = _Values(trees={}, objects={})


def read(
    root: Path, step: int, targets: Mapping[str, Any], *, run: str | None
) -> tuple[StepReport, dict[str, Any]]:
    """Reads `targets` from one step and agrees with the other processes on its problems.

    Args:
        root: Directory of the run.
        step: Number of the step.
        targets: Pytrees or objects by item name.
        run: The identity of the run; None if unknown.

    Returns:
        The report, and the items: pytrees in the structure of their targets, and states of objects.
        No object's state is set.

    Raises:
        ValueError: The step belongs to another model. Damage is reported, not raised.
    """
    directory = step_directory(root, step)
    items, problems = read_record(directory)
    recorded = items is not None
    report = StepReport(
        path=directory,
        step=step,
        verified=False,
        foreign=not recorded and not is_ours(directory),
        numbered=items is None or items.identity is not None,
    )
    stated = items.identity if items else None
    if misplaced := agree.problems(identity_problems(directory, stated, run)):
        return replace(report, problems=tuple(misplaced)), {}
    mismatch, wanted = None, _wanted(_NOTHING, {})
    if items is None and not problems:
        items, problems = _foreign(directory, targets)
    if items is not None and not problems:
        try:
            target.check(items, targets)
            wanted = _wanted(items, targets)
        except (ValueError, TypeError) as error:
            mismatch = error
    agree.raise_together(mismatch)
    values, agreed = _prove(directory, items or _NOTHING, wanted, problems)
    report = replace(report, verified=recorded and not agreed, problems=agreed)
    if agreed or items is None:
        return report, {}
    restored = {
        name: values.objects[name]
        if name in items.objects
        else _built(items.trees[name], targets[name], values.trees[name])
        for name in targets
    }
    return report, restored


def read_record(directory: Path) -> tuple[Items | None, list[Problem]]:
    """Returns the manifest of a step, or None without one or if it is lost, and its problems."""
    try:
        listed = _compat.item_names(directory)
        there = _compat.document_path(directory, MANIFEST_ITEM).exists()
        if MANIFEST_ITEM not in listed and not there:
            return None, []
        items = decode(_compat.load_document(directory, MANIFEST_ITEM))
    except _UNREADABLE as error:
        return None, [
            Problem(where=MANIFEST_ITEM, reason=f"the manifest cannot be read ({error!r})")
        ]
    unknown = sorted({*listed} - {*items.trees, *items.objects, MANIFEST_ITEM})
    if unknown:
        reason = f"Orbax lists the items {unknown}, which the manifest does not state"
        return items, [Problem(where=_compat.STEP_METADATA, reason=reason)]
    return items, []


def _foreign(directory: Path, targets: Mapping[str, Any]) -> tuple[Items | None, list[Problem]]:
    """Returns the items of a step without manifest, or its problem."""
    try:
        return foreign.described_items(directory, targets), []
    except Exception as error:  # Orbax raises many types for metadata that it cannot read
        reason = f"Orbax cannot describe this step ({error!r:.300})"
        return None, [Problem(where="items", reason=reason)]


def _wanted(items: Items, targets: Mapping[str, Any]) -> _Wanted:
    trees, asked = {}, {}
    # In one order on all processes, which take part in the digests: sets of names have none.
    for name in sorted(targets.keys() & items.trees.keys()):
        names, leaves, _ = leaf_names(targets[name])
        by_name = dict(zip(names, leaves, strict=True))
        saved = [leaf.name for leaf in items.trees[name].leaves]
        pairs = target.matches(saved, names)
        trees[name] = [by_name[pairs[leaf]] for leaf in saved]
        asked[name] = list(map(target.abstract_leaf, items.trees[name].leaves, trees[name]))
    objects = sorted(targets.keys() & items.objects.keys())
    return _Wanted(trees=trees, asked=asked, objects=objects)


def _built(item: TreeItem, wanted: Any, values: list[Any]) -> Any:
    names, _, structure = leaf_names(wanted)
    saved = [leaf.name for leaf in item.leaves]
    pairs = target.matches(saved, names)
    by_name = {pairs[name]: value for name, value in zip(saved, values, strict=True)}
    return structure.unflatten([by_name[name] for name in names])


def _prove(
    directory: Path, items: Items, wanted: _Wanted, problems: list[Problem]
) -> tuple[_Values, tuple[Problem, ...]]:
    """Reads the wanted items and lists their problems, the same on all processes."""
    with ThreadPoolExecutor(1) as pool:
        # Hashing needs one core and no lock, so it runs beside Orbax's reading.
        rank, parts = jax.process_index(), jax.process_count()
        hashing = pool.submit(checksums.check, directory, quick=True, part=rank, parts=parts)
        if parts > 1:
            # A process that cannot read would leave the others waiting in Orbax: agree before.
            problems = agree.problems(problems + hashing.result())
        values = _NO_VALUES
        if not problems:
            values, problems = _load(directory, items, wanted, hashing)
        return values, tuple(agree.problems(problems + hashing.result()))


def _load(
    directory: Path, items: Items, wanted: _Wanted, hashing: Future[list[Problem]]
) -> tuple[_Values, list[Problem]]:
    trees, objects, problems, fault = {}, {}, [], None
    try:
        trees = _load_trees(directory, items, wanted)
        objects = {name: foreign.document(directory, name) for name in wanted.objects}
    except Exception as error:
        # Orbax and TensorStore raise many types for a damaged file. If every file has its checksum,
        # the fault is elsewhere (memory, devices, a bug) and is not for us to hide. A process
        # that hashed a part of the files looks at all of them: others may see them otherwise.
        alone = jax.process_count() == 1
        problems = hashing.result() if alone else checksums.check(directory, quick=True)
        fault = error if checksums.exists(directory) and not problems else None
        problems = [Problem(where="items", reason=f"cannot be read ({error!r:.300})"), *problems]
    agree.raise_together(fault)
    problems = agree.problems(problems)  # before the digests, in which all processes take part
    if problems:
        return _NO_VALUES, problems
    problems = _leaf_problems(items, trees) + _state_problems(items, objects)
    problems += _metrics_problems(directory, items)
    if problems:
        return _NO_VALUES, problems
    finished = {
        name: list(map(target.finish, values, wanted.trees[name])) for name, values in trees.items()
    }
    states = {name: _own_state(items.objects[name], value) for name, value in objects.items()}
    return _Values(trees=finished, objects=states), []


def _load_trees(directory: Path, items: Items, wanted: _Wanted) -> dict[str, list[Any]]:
    """Returns the leaves of each tree in the manifest's order, as Orbax returns them."""
    abstract, values = {}, {}
    for name, targets in wanted.trees.items():
        item = items.trees[name]
        stored = set(jax.tree.leaves(item.tree))
        # The others are arrays without elements: nothing of them lies on disk.
        values[name] = [None if i in stored else target.empty(x) for i, x in enumerate(targets)]
        if stored:
            abstract[name] = jax.tree.map(wanted.asked[name].__getitem__, item.tree)
    for name, loaded in _compat.load(directory, abstract).items():
        numbers = jax.tree.leaves(items.trees[name].tree)
        for i, leaf in zip(numbers, jax.tree.leaves(loaded), strict=True):
            values[name][i] = leaf
    return values


def _leaf_problems(items: Items, trees: Mapping[str, list[Any]]) -> list[Problem]:
    """Compares the digests of the loaded leaves, computed on their devices, with the recorded
    digests.
    """
    checked = [
        (f"{item}/{name}", saved.digest, value)
        for item, values in trees.items()
        for name, saved, value in _shown(items.trees[item].leaves, values)
        if saved.digest is not None
    ]
    digests = hex_digests([value for _, _, value in checked])
    return [
        Problem(where=where, reason=f"its digest is {have}, saved was {want}")
        for (where, want, _), have in zip(checked, digests, strict=True)
        if have != want
    ]


def _shown(leaves: Sequence[Leaf], values: list[Any]) -> Iterator[tuple[str, Leaf, Any]]:
    return zip(shown_names([leaf.name for leaf in leaves]), leaves, values, strict=True)


def object_problems(directory: Path, items: Items) -> list[Problem]:
    """Returns the problems of the states of all objects, and of the metrics."""
    states, problems = {}, []
    for name in items.objects:
        try:
            states[name] = _compat.load_document(directory, name)
        except (OSError, ValueError) as error:
            problems.append(Problem(where=name, reason=f"its state cannot be read ({error!r})"))
    return problems + _state_problems(items, states) + _metrics_problems(directory, items)


def state_of(
    root: Path, step: int, name: str, *, run: str | None
) -> tuple[bool, dict[str, Any] | None]:
    """Reads the state of one object, the same step and file for all processes.

    Args:
        root: Directory of the run.
        step: Number of the step.
        name: Name of the item.
        run: The identity of the run; None if unknown.

    Returns:
        Whether manifest and state are intact, and the state, or None if the step has no such
        object.
    """
    intact, shared, value = agree.gather(_stored_state(root, step, name, run))[0]
    item = ObjectItem(shared=shared, sha256=None)
    return intact, None if value is None else _own_state(item, value)


def _stored_state(root: Path, step: int, name: str, run: str | None) -> tuple[bool, bool, Any]:
    """Returns whether the state is intact, whether all processes share it, and its document."""
    directory = step_directory(root, step)
    items, problems = read_record(directory)
    stated = items.identity if items else None
    if problems or identity_problems(directory, stated, run):
        return False, True, None
    try:
        if items is None:
            there = name in _compat.document_names(directory)
            return True, True, foreign.document(directory, name) if there else None
        if name not in items.objects:
            return True, True, None
        value = _compat.load_document(directory, name)
    except (OSError, ValueError):
        return False, True, None
    return not _state_problems(items, {name: value}), items.objects[name].shared, value


def _state_problems(items: Items, objects: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(where=name, reason="its state does not have the sha256 that was saved")
        for name, state in objects.items()
        if items.objects[name].sha256 not in (None, json_sha256(state))
    ]


def _metrics_problems(directory: Path, items: Items) -> list[Problem]:
    if not items.metrics:
        return []
    try:
        same = _compat.load_metrics(directory) == items.metrics
    except (OSError, ValueError):
        same = False
    return [] if same else [Problem(where="metrics", reason="are not those that were saved")]


def _own_state(item: ObjectItem, value: dict[str, Any]) -> dict[str, Any]:
    if item.shared:
        return value
    if len(value) != jax.process_count():
        raise ValueError(
            "an object whose state differs between processes must be restored by as many as saved "
            f"it, got process_count={jax.process_count()} for {len(value)} states; "
            f"run {len(value)} processes"
        )
    return value[str(jax.process_index())]
