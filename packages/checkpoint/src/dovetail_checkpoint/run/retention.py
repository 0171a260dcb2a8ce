# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Retention: the policy for deleting the steps of a run, and the deletions.

A committed step is a directory named by its number (steps.py). A step to delete is renamed
first, so an interrupted deletion never leaves half of a step under its number. Damaged steps keep
their files: if training reaches such a step again, the old directory is renamed, not overwritten.
Steps of plain Orbax are neither renamed nor deleted. A deletion that fails is a warning; the next
save tries again.
"""

import difflib
import logging
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dovetail_checkpoint import _compat, _elsewhere
from dovetail_checkpoint._durable import sync
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.run import metrics
from dovetail_checkpoint.run.steps import PLAIN, is_ours, step_directories, step_directory

_logger = logging.getLogger(__name__)
_SHOWN = 10  # in a warning
_DELETING_SUFFIX = ".dovetail-deleting"
DAMAGED_SUFFIX = ".dovetail-damaged"
REWOUND_SUFFIX = ".dovetail-rewound"
_DELETING = re.compile(rf"({PLAIN.pattern}){re.escape(_DELETING_SUFFIX)}")
_LEFTOVER = re.compile(
    rf"({PLAIN.pattern})({re.escape(_DELETING_SUFFIX)}|{re.escape(_compat.UNCOMMITTED_SUFFIX)}.*)"
)


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


@_elsewhere.retention
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


def set_aside(root: Path, step: int, *, suffix: str = DAMAGED_SUFFIX) -> Path:
    """Renames a step to free its number; returns the new path.

    Args:
        root: Directory of the run.
        step: Number of the step.
        suffix: Why it is set aside: DAMAGED_SUFFIX or REWOUND_SUFFIX.
    """
    copies = len(list(root.glob(f"{step}{suffix}*")))
    aside = step_directory(root, step).rename(root / f"{step}{suffix}-{copies}")
    sync(root)
    return aside


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
        for step, directory in step_directories(root).items()
        if step not in damaged and is_ours(directory)
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


class Pruner:
    """Deletes the steps of `root` that the policy does not keep.

    Args:
        root: Directory of the run.
        rule: The retention policy.
        checked_only: A step is good only once it has checksums.

    Attributes:
        failures: Number of deletions that failed so far. Each is tried again at the next save.
    """

    def __init__(self, root: Path, rule: Retention, *, checked_only: bool) -> None:
        self.failures = 0
        self._root, self._rule, self._checked_only = root, rule, checked_only
        self._is_compared = False

    def prune(self, damaged: Collection[int]) -> None:
        """Deletes what it can, and warns of the rest."""
        try:
            retained = retain(
                self._root, self._rule, damaged=damaged, checked_only=self._checked_only
            )
        except OSError as error:
            self._warn([error])
            return
        if retained.errors:
            self._warn(retained.errors)
        if self._rule.best and retained.doomed and not self._is_compared:
            self._is_compared = True
            if message := unmeasured(self._rule.best, retained.metrics):
                _logger.warning("%s: %s", self._root, message)

    def _warn(self, errors: list[OSError]) -> None:
        self.failures += len(errors)
        _logger.warning(
            "%s: %d old steps could not be deleted, first %s; the next save tries again",
            self._root,
            len(errors),
            errors[0],
        )


def unmeasured(best: Best, metrics: Mapping[int, Mapping[str, float | int]]) -> str | None:
    """Returns a message if none of the steps has the metric that `best` compares."""
    if any(best.metric in numbers for numbers in metrics.values()):
        return None
    names = sorted({name for numbers in metrics.values() for name in numbers})
    shown = difflib.get_close_matches(best.metric, names, n=_SHOWN) or names[:_SHOWN]
    have = f"they have {shown}" if names else "they have no metrics"
    return (
        f"a metric must be saved with a step to be compared, got Best({best.metric!r}) and none in "
        f"steps {sorted(metrics)}, so none of them is kept as the best: {have}; call "
        f"save(step, metrics={{{best.metric!r}: ...}}), or measure at the steps that are saved"
    )
