# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The steps that lie in a root directory, and which of them go.

A committed step is a directory named by its number. A step on its way out is renamed first, so
that a deletion that is interrupted never leaves half of a step under its number. Damaged steps
keep their files: when training reaches such a step again, the old one is renamed, not overwritten.
"""

import logging
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dovetail_checkpoint import _compat, seal
from dovetail_checkpoint.record import RECORD_ITEM

_logger = logging.getLogger(__name__)
_STEP = re.compile(r"0|[1-9][0-9]*")
_DELETING_SUFFIX = ".dovetail-deleting"
_DAMAGED_SUFFIX = ".dovetail-damaged"
_LEFTOVER = re.compile(
    rf"({_STEP.pattern})({re.escape(_DELETING_SUFFIX)}|{re.escape(_compat.UNCOMMITTED_SUFFIX)}.*)"
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A committed step as it lies on disk. `items` is empty where the step's metadata is lost."""

    step: int
    items: tuple[str, ...]
    bytes: int
    sealed: bool


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Keeps the newest `latest` good steps and everything newer than the oldest of them."""

    latest: int = 3

    def __post_init__(self) -> None:
        if self.latest < 1:
            raise ValueError(
                f"Keep must leave at least one step, got latest={self.latest}; "
                "use latest=1 to keep only the newest"
            )

    def doomed(self, steps: Collection[int], *, good: Collection[int]) -> list[int]:
        """The `steps` to delete: all older than the `latest` newest of the `good` ones.

        Nothing goes until `latest` good steps exist, so the last good step never goes.
        """
        kept = sorted(good)[-self.latest :]
        if len(kept) < self.latest:
            return []
        return sorted(step for step in steps if step < kept[0])


def step_directory(root: Path, step: int) -> Path:
    """Where the step lies: `root/STEP`, the name that Orbax's Checkpointer gives it."""
    return root / str(step)


def committed_steps(root: Path) -> list[int]:
    """The numbers of the committed steps, oldest first; empty if there is no root yet."""
    if not root.is_dir():
        return []
    names = (path.name for path in root.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if _STEP.fullmatch(name))


def describe(root: Path, step: int) -> Step:
    """What lies on disk for one step; no array is read."""
    directory = step_directory(root, step)
    items = _compat.item_names(directory)
    return Step(
        step=step,
        items=tuple(name for name in items if name != RECORD_ITEM),
        bytes=sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
        sealed=seal.exists(directory),
    )


def delete(root: Path, step: int) -> None:
    """Deletes one step; if interrupted, the rest is a leftover and no longer a step."""
    doomed = root / f"{step}{_DELETING_SUFFIX}"
    step_directory(root, step).rename(doomed)
    seal.sync_directory(root)
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


def retain(root: Path, rule: Keep, *, damaged: Collection[int], sealed_only: bool) -> None:
    """Deletes what `rule` lets go.

    Steps known to be damaged neither count as good nor go. With `sealed_only` a step is good once
    it is sealed; an older unsealed step goes with the others.
    """
    sound = [step for step in committed_steps(root) if step not in damaged]
    good = [s for s in sound if not sealed_only or seal.exists(step_directory(root, s))]
    for step in rule.doomed(sound, good=good):
        delete(root, step)
