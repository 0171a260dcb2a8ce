# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The steps in a root directory, and the policy for deleting them.

A committed step is a directory named by its number (step_names.py). A step to delete is renamed
first, so an interrupted deletion never leaves half of a step under its number. Damaged steps keep
their files: if training reaches such a step again, the old directory is renamed, not overwritten.
Steps of plain Orbax are neither renamed nor deleted.
"""

import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dovetail_checkpoint import _compat, agree, checksums, identity, metrics, step_names
from dovetail_checkpoint._durable import sync
from dovetail_checkpoint.manifest import MANIFEST_ITEM, Identity

_logger = logging.getLogger(__name__)
_DELETING_SUFFIX = ".dovetail-deleting"
_DAMAGED_SUFFIX = ".dovetail-damaged"
_DELETING = re.compile(rf"({step_names.PLAIN.pattern}){re.escape(_DELETING_SUFFIX)}")
_LEFTOVER = re.compile(
    rf"({step_names.PLAIN.pattern})({re.escape(_DELETING_SUFFIX)}|{re.escape(_compat.UNCOMMITTED_SUFFIX)}.*)"
)


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """A committed step on disk.

    Attributes:
        step: Its number.
        items: Names of its items; empty if its metadata is lost.
        bytes: Size of all files.
        has_checksums: Whether its files have checksums.
        metrics: Numbers by name.
        identity: The step and the run in its manifest; None in steps of older versions and of plain
            Orbax.
        misplaced: The difference if the manifest states another step or run; `restore` refuses it.
    """

    step: int
    items: tuple[str, ...]
    bytes: int
    has_checksums: bool
    metrics: Mapping[str, float | int] = field(default_factory=dict)
    identity: Identity | None = None
    misplaced: str | None = None


@dataclass(frozen=True)
class Best:
    """Keeps the steps with the best values of a metric.

    Of equal values the newer step is better. A step saved without the metric does not count.

    Args:
        metric: Name of the metric, as passed to `Store.save`.
        mode: "min" or "max".
        count: Number of steps.
    """

    metric: str
    mode: Literal["min", "max"] = field(kw_only=True)
    count: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(
                f"Best must compare by 'min' or 'max', got mode={self.mode!r}; use mode='min' "
                "for a loss"
            )
        if self.count < 1:
            raise ValueError(
                f"Best must keep at least one step, got count={self.count}; use "
                "Retention(best=None) to keep none"
            )

    def of(self, metrics: Mapping[int, Mapping[str, float | int]]) -> list[int]:
        """Returns the best of these steps, at most `count`."""
        sign = 1 if self.mode == "min" else -1
        having = [step for step, numbers in metrics.items() if self.metric in numbers]
        return sorted(having, key=lambda s: (sign * metrics[s][self.metric], -s))[: self.count]


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Keeps the newest `latest` good steps and everything newer than the oldest of them.

    Args:
        latest: Number of good steps; at least 1.
        every: Keep multiples of this step number for ever, 0 too. None: no step.
        best: Keep good steps as long as none is better. None: no metric is compared.

    Example:

        >>> Retention(latest=2, every=10_000, best=Best("eval/loss", mode="min")).every
        10000
    """

    latest: int = 3
    every: int | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        if self.latest < 1:
            raise ValueError(
                f"Retention must leave at least one step, got latest={self.latest}; "
                "use latest=1 to keep only the newest"
            )
        if self.every is not None and self.every < 1:
            raise ValueError(
                f"Retention must be given a number of steps, got every={self.every}; use "
                "every=None to keep none for ever"
            )
        if not isinstance(self.best, Best | None):
            raise TypeError(
                f"best must be a Best, which knows the better direction, got best={self.best!r}; "
                'use Best("loss", mode="min")'
            )

    def doomed(
        self, steps: Collection[int], *, good: Mapping[int, Mapping[str, float | int]]
    ) -> list[int]:
        """Returns the `steps` to delete.

        Nothing is deleted until `latest` good steps exist, so the last good step always stays.

        Args:
            steps: Numbers of the committed steps.
            good: Metrics of the good steps.
        """
        kept = sorted(good)[-self.latest :]
        if len(kept) < self.latest:
            return []
        best = self.best.of(good) if self.best else []
        return sorted(
            step
            for step in steps
            if step < kept[0] and step not in best and (self.every is None or step % self.every)
        )


def step_directory(root: Path, step: int) -> Path:
    """Returns `root/STEP`, or the directory of plain Orbax for a step that only it wrote."""
    own = root / str(step)
    return own if own.is_dir() else step_names.directories(root).get(step, own)


def committed_steps(root: Path) -> list[int]:
    """Returns the numbers of the committed steps, oldest first; none without a root."""
    return list(step_names.directories(root))


def was_deleted(directory: Path) -> bool:
    """Whether any process sees that the step is gone. A collective."""
    return not all(agree.gather(directory.is_dir()))


def missing(path: Path) -> str:
    """Returns the end of a message about a path without checkpoint, with the steps beside it."""
    if path.is_dir():
        return ", which holds none; give a run, one of its steps, or safetensors files"
    steps = committed_steps(path.parent)
    if not steps:
        return ", which does not exist; give an existing run or step"
    newest = step_directory(path.parent, steps[-1])
    return f", which does not exist; {path.parent} has the steps {steps}: give {newest}"


def describe(root: Path, step: int) -> SavedStep:
    """Describes one step on disk. Reads no array."""
    return describe_directory(step_directory(root, step), step)


def describe_directory(directory: Path, step: int) -> SavedStep:
    """Describes the step in a directory. Reads no array."""
    stated = identity.of_step(directory)
    try:
        items = _compat.item_names(directory)
    except (OSError, ValueError, LookupError, TypeError):
        items = []
    return SavedStep(
        step=step,
        items=tuple(name for name in items if name not in (MANIFEST_ITEM, _compat.METRICS_ITEM)),
        bytes=size(directory),
        has_checksums=checksums.exists(directory),
        metrics=metrics.read(directory),
        identity=stated,
        misplaced=identity.note(directory, stated),
    )


def described_steps(root: Path) -> list[SavedStep]:
    """Returns the committed steps, oldest first, without those that a running save deletes
    meanwhile.
    """
    described = [describe(root, step) for step in committed_steps(root)]
    return [step for step in described if step_directory(root, step.step).is_dir()]


def size(directory: Path) -> int:
    """Returns the bytes of all files of a step. A file that is renamed or deleted meanwhile, such
    as SHA256SUMS, counts 0.
    """
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def delete(root: Path, step: int) -> None:
    """Deletes one step. After an interruption the rest is a leftover, not a step."""
    doomed = root / f"{step}{_DELETING_SUFFIX}"
    try:
        step_directory(root, step).rename(doomed)
    except FileNotFoundError:
        return  # somebody else deleted it
    sync(root)
    _remove(doomed)


def _remove(path: Path) -> None:
    """Deletes a directory, or a link alone: what it names belongs to somebody else."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def delete_leftovers(root: Path, *, step: int | None = None) -> None:
    """Deletes the leftovers of interrupted saves and deletions: of one step, or of all.

    Call it only in a process that may write to the root, and only while it saves nothing.
    """
    for error in _remove_leftovers(root, _LEFTOVER, step=step):
        # Orbax reports the first write that fails while others still run, and these may fill the
        # directory again. The next run's first save deletes what they left.
        _logger.warning("%s stays for now: %s", error.filename, error.strerror)


def _remove_leftovers(
    root: Path, pattern: re.Pattern[str], *, step: int | None = None
) -> list[OSError]:
    """Deletes leftovers. Returns the error of each that stays."""
    errors = []
    for path in sorted(root.iterdir()):
        match = pattern.fullmatch(path.name)
        if not match or step not in (None, int(match[1])):
            continue
        try:
            _remove(path)
        except OSError as error:
            errors.append(_with_path(error, path))
    return errors


def _with_path(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror or str(error), str(path))


def set_aside(root: Path, step: int) -> Path:
    """Renames a damaged step to free its number; returns the new path."""
    copies = len(list(root.glob(f"{step}{_DAMAGED_SUFFIX}*")))
    aside = root / f"{step}{_DAMAGED_SUFFIX}-{copies}"
    return step_directory(root, step).rename(aside)


@dataclass(frozen=True, kw_only=True)
class Retained:
    """The result of one retention.

    Attributes:
        doomed: Numbers of the steps that the policy does not keep.
        metrics: Metrics of the good steps, read only if the policy compares one.
        errors: An error for each step or leftover that could not be deleted.
    """

    doomed: list[int]
    metrics: Mapping[int, Mapping[str, float | int]]
    errors: list[OSError]


def retain(
    root: Path, rule: Retention, *, damaged: Collection[int], checked_only: bool
) -> Retained:
    """Deletes the steps that the retention policy does not keep, and leftovers of deletions.

    Known damaged steps neither count as good nor are deleted, and neither are steps of others.

    Args:
        root: Directory of the run.
        rule: The retention policy.
        damaged: Numbers of damaged steps.
        checked_only: A step is good only once it has checksums. An older step without them is
            deleted with the others.
    """
    errors = _remove_leftovers(root, _DELETING)
    directories = {
        step: directory
        for step, directory in step_names.directories(root).items()
        if step not in damaged and identity.is_ours(directory)
    }
    good = {
        step: metrics.read(directory) if rule.best else {}
        for step, directory in directories.items()
        if not checked_only or checksums.exists(directory)
    }
    doomed = rule.doomed(directories, good=good)
    for step in doomed:
        try:
            delete(root, step)
        except OSError as error:
            errors.append(_with_path(error, directories[step]))
    return Retained(doomed=doomed, metrics=good, errors=errors)
