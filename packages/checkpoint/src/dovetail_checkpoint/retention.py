# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The steps that lie in a root directory, and which of them go.

A committed step is a directory named by its number. A step on its way out is renamed first, so
that a deletion that is interrupted never leaves half of a step under its number. Damaged steps
keep their files: when training reaches such a step again, the old one is renamed, not overwritten.
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

from dovetail_checkpoint import _compat, checksums, metrics
from dovetail_checkpoint._durable import sync
from dovetail_checkpoint.manifest import MANIFEST_ITEM

_logger = logging.getLogger(__name__)
_STEP = re.compile(r"0|[1-9][0-9]*")
_DELETING_SUFFIX = ".dovetail-deleting"
_DAMAGED_SUFFIX = ".dovetail-damaged"
_LEFTOVER = re.compile(
    rf"({_STEP.pattern})({re.escape(_DELETING_SUFFIX)}|{re.escape(_compat.UNCOMMITTED_SUFFIX)}.*)"
)


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """A committed step as it lies on disk. `items` is empty where the step's metadata is lost."""

    step: int
    items: tuple[str, ...]
    bytes: int
    has_checksums: bool
    metrics: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """The `count` steps with the least (`mode="min"`) or greatest value of `metric`.

    Of equal values the newer step is better. A step that was saved without the metric is none.
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
        """The best of these steps, at most `count`."""
        sign = 1 if self.mode == "min" else -1
        having = [step for step, found in metrics.items() if self.metric in found]
        return sorted(having, key=lambda s: (sign * metrics[s][self.metric], -s))[: self.count]


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Keeps the newest `latest` good steps and everything newer than the oldest of them.

    every: multiples of this step number stay for ever, 0 too. None: no step does.
    best: of the good steps, these stay as long as none is better. None: no metric is compared.

    >>> Retention(latest=2, every=10_000, best=Best("eval/loss", mode="min"))
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

    def doomed(
        self, steps: Collection[int], *, good: Mapping[int, Mapping[str, float | int]]
    ) -> list[int]:
        """The `steps` to delete, given the metrics of those that are `good`.

        Nothing goes until `latest` good steps exist, so the last good step never goes.
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
    """Where the step lies: `root/STEP`, the name that Orbax's Checkpointer gives it."""
    return root / str(step)


def committed_steps(root: Path) -> list[int]:
    """The numbers of the committed steps, oldest first; empty if there is no root yet."""
    if not root.is_dir():
        return []
    names = (path.name for path in root.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if _STEP.fullmatch(name))


def describe(root: Path, step: int) -> SavedStep:
    """What lies on disk for one step; no array is read."""
    directory = step_directory(root, step)
    try:
        items = _compat.item_names(directory)
    except (OSError, ValueError, LookupError, TypeError):
        items = []
    return SavedStep(
        step=step,
        items=tuple(name for name in items if name not in (MANIFEST_ITEM, _compat.METRICS_ITEM)),
        bytes=_size(directory),
        has_checksums=checksums.exists(directory),
        metrics=metrics.read(directory),
    )


def described_steps(root: Path) -> list[SavedStep]:
    """The committed steps, oldest first, without those that a running save deletes meanwhile."""
    described = [describe(root, step) for step in committed_steps(root)]
    return [step for step in described if step_directory(root, step.step).is_dir()]


def _size(directory: Path) -> int:
    """Bytes of all files. One that is renamed or deleted meanwhile, as SHA256SUMS is, counts 0."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(folder, name)).st_size
    return size


def delete(root: Path, step: int) -> None:
    """Deletes one step; if interrupted, the rest is a leftover and no longer a step."""
    doomed = root / f"{step}{_DELETING_SUFFIX}"
    step_directory(root, step).rename(doomed)
    sync(root)
    shutil.rmtree(doomed)


def delete_leftovers(root: Path, *, step: int | None = None) -> None:
    """Deletes what interrupted saves and deletions left: of one step, or of all.

    Only a process that may write to the root calls this, and only while it saves nothing.
    """
    for path in sorted(root.iterdir()):
        match = _LEFTOVER.fullmatch(path.name)
        if not match or step not in (None, int(match[1])):
            continue
        try:
            shutil.rmtree(path)
        except OSError as error:
            # Orbax reports the first write that fails while others still run, and these may fill
            # the directory again. The next run's first save deletes what they left.
            _logger.warning("%s stays for now: %s", path, error)


def set_aside(root: Path, step: int) -> Path:
    """Renames a damaged step so that its number is free again; returns where it lies now."""
    copies = len(list(root.glob(f"{step}{_DAMAGED_SUFFIX}*")))
    aside = root / f"{step}{_DAMAGED_SUFFIX}-{copies}"
    return step_directory(root, step).rename(aside)


def retain(root: Path, rule: Retention, *, damaged: Collection[int], checked_only: bool) -> None:
    """Deletes what `rule` lets go.

    Steps known to be damaged neither count as good nor go. With `checked_only` a step is good once
    it has checksums; an older one without them goes with the others.
    """
    sound = [step for step in committed_steps(root) if step not in damaged]
    directories = {step: step_directory(root, step) for step in sound}
    good = {
        step: metrics.read(directory) if rule.best else {}
        for step, directory in directories.items()
        if not checked_only or checksums.exists(directory)
    }
    for step in rule.doomed(sound, good=good):
        delete(root, step)
