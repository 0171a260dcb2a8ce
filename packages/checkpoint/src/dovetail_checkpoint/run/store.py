# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: saving in the background, restoring the newest verified step."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import jax

from dovetail_checkpoint import _compat, _elsewhere, transfers
from dovetail_checkpoint.layout.target import with_states
from dovetail_checkpoint.proof import agree, checksums
from dovetail_checkpoint.proof.manifest import Identity
from dovetail_checkpoint.proof.report import IntegrityReport, Problem, StepReport
from dovetail_checkpoint.run import failing, reading, retention
from dovetail_checkpoint.run.contents import Checked, check, contents
from dovetail_checkpoint.run.metrics import checked
from dovetail_checkpoint.run.retention import Pruner, Retention
from dovetail_checkpoint.run.steps import (
    SavedStep,
    agreed_run,
    begin_run,
    check_number,
    check_root,
    committed_steps,
    described_steps,
    misplaced_steps,
    other_step,
    run_of_root,
    step_directory,
    was_deleted,
)
from dovetail_checkpoint.run.writer import Saving, Writer, writer_of

_logger = logging.getLogger(__name__)
_RETENTION = Retention(latest=3)
# Steps deleted under a reader. Each one is a whole save: the reader does not catch up.
_LISTS = 20


@_elsewhere.store
class Store:
    """Saves and restores the checkpoints of one training run.

    Each step is one directory under `root`, readable by plain Orbax. `save` returns as soon as the
    arrays may be donated and writes in the background. `restore` returns the newest step whose
    digests hold on every process. A step directory that was renamed, copied, swapped or linked is
    refused: its manifest says its number and run.

    All processes of a run make the same calls on their main threads. Use the store as a context
    manager: leaving the block waits for the last save and frees the root for other writers. The
    first save takes the lock of the root: one process, or all processes of one run, may write;
    reading needs no lock. A script that ends without `close` still waits for its last save, up to
    `timeout_s`, and logs a step that is lost.

    Args:
        root: Directory of the run. The first save creates it.
        every: Interval for `due`, in steps. None: never due.
        retention: Retention policy. Old steps are deleted after newer ones have their checksums.
        verify: "recorded" checks every recorded digest and restores plain Orbax steps unchecked.
            "always" refuses a step without manifest.
        checksums: Compute checksums of the files after each commit, in the background.
        compress: Compress with zstd. A save takes three times as long and random float32 shrinks by
            14 %, so the default is off.
        timeout_s: Limit for writing one step, in seconds.

    Raises:
        ValueError: An option is out of range.

    Example:

        >>> import jax.numpy as jnp
        >>> with Store("run") as store:
        ...     store.save(10, model={"w": jnp.ones(3)})
        >>> step, items = store.restore(model={"w": jnp.zeros(3)})
        >>> step, items["model"]["w"]
        (10, Array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        root: str | Path,
        *,
        every: int | None = None,
        retention: Retention = _RETENTION,
        verify: Literal["recorded", "always"] = "recorded",
        checksums: bool = True,
        compress: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(
                f"every must be a number of steps, got every={every}; use every=None to save "
                "only when asked"
            )
        if verify not in ("recorded", "always"):
            raise ValueError(
                f"verify must be 'recorded' or 'always', got verify={verify!r}; use 'recorded'"
            )
        if not isinstance(retention, Retention):
            raise TypeError(
                f"retention must be a Retention, got retention={retention!r}; "
                "use Retention(latest=3)"
            )
        self._root = Path(root).absolute()
        self._every = every
        self._pruner = Pruner(self._root, retention, checked_only=checksums)
        self._verify = verify
        self._checksums = checksums
        self._compress = compress
        self._timeout_s = timeout_s
        self._pending: Saving | None = None
        self._tidied = False
        self._damaged: set[int] = set()
        self._run: str | None = None
        self._handled: BaseException | None = None  # while the last save began
        self.report = IntegrityReport()

    def __repr__(self) -> str:
        steps = committed_steps(self._root)
        held = f"steps {steps[0]} to {steps[-1]} ({len(steps)})" if steps else "no step"
        saving = f", saving {self._pending.step}" if self._pending else ""
        return f"Store({str(self._root)!r}: {held}{saving})"

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def due(self, step: int) -> bool:
        """True if `step` is a positive multiple of `every`."""
        return self._every is not None and step > 0 and step % self._every == 0

    @_elsewhere.save
    @jax.transfer_guard("allow")  # the user's guard is for the steps of training
    def save(self, step: int, *, metrics: Mapping[str, Any] | None = None, **items: Any) -> None:
        """Starts the commit of all `items` as `step`; returns when arrays may be donated.

        Waits for the previous save. A step found damaged by the last restore is renamed and kept.

        Args:
            step: Number of the step; at least 0.
            metrics: Numbers by name, the same on every process; `Retention` may compare them. NaN
                and infinities are left out.
            items: Pytrees of arrays, typed keys and numbers, or objects with get_state and
                set_state.

        Raises:
            ValueError: The step exists, an item cannot be stored, or the root has one of `*?[`.
            TypeError: An item cannot be stored.
            RuntimeError: The previous save failed, or another process writes to the root.
        """
        self._settle()
        check_number(step)
        check_root(self._root)
        numbers = checked(metrics, step=step)
        writer = writer_of(self._root)
        writer.enter(self)
        # Nobody writes before every process can, and before there is room.
        prepared, error = _prepared(items)
        agree.raise_together(error or self._refusal(step, writer))
        self._run = self._run or agreed_run(self._root)
        parts = contents(prepared, metrics=numbers, identity=Identity(step=step, run=self._run))
        response = _compat.save(
            step_directory(self._root, step),
            trees=parts.trees,
            documents=parts.documents,
            manifest=parts.manifest,
            metrics=numbers,
            compress=self._compress,
            timeout_s=self._timeout_s,
        )
        self._damaged.discard(step)
        self._handled = sys.exc_info()[1]
        self._pending = writer.begin(
            step, lambda: self._complete(step, response, writer), limit_s=self._timeout_s
        )

    @_elsewhere.restore
    @jax.transfer_guard("allow")
    def restore(
        self, *, step: int | None = None, **targets: Any
    ) -> tuple[int, dict[str, Any]] | None:
        """Restores the newest step that every process proves intact.

        The result for each step tried is in `report`. Damaged steps are logged and stay on disk.

        Names, shapes and dtypes of the leaves must be those that were saved. `load` takes `rules`
        (`rename`, `stack`, `split`, `cast`, ...) and reads a step into another layout.

        Args:
            step: Number of the only step to try. None: the newest, then the step before it.
            targets: Pytrees of jax.ShapeDtypeStruct with shardings (optional for a single process),
                of arrays or of numbers: the structure and the type of each restored leaf. Or
                objects; their states are set after everything else is read and proven.

        Returns:
            The step and its items by name, or None without any step.

        Raises:
            ValueError: The step belongs to another model, or `step` was not saved.
            RuntimeError: No step is intact, or jax.config forbids `jax.device_put`.
        """
        self._settle()
        if not targets:
            raise ValueError(
                "restore needs at least one target, got none; restore(model=jax.eval_shape(init))"
            )
        tried: dict[int, StepReport] = {}
        deleted: set[int] = set()
        while (candidate := self._next(step, {*tried, *deleted})) is not None:
            number, run, problems = candidate
            transfers.check(targets)
            report, items = reading.read(self._root, number, targets, run=run)
            report = self._judged(report)
            if report.problems and was_deleted(report.path):
                deleted.add(number)  # by the run that saves beside this reader: list again
                self._check_deleted(deleted)
                continue
            tried[number] = report
            self.report = IntegrityReport(steps=tuple(tried.values()), problems=problems)
            if not report.problems:
                return number, with_states(items, targets)
            if not report.foreign:
                self._damaged.add(number)
            _logger.warning("%s: %s; trying the step before it", self._root, report)
        if not tried:
            return None
        raise RuntimeError(
            f"one step in {self._root} must be intact, got none:\n{self.report}\n"
            "restore the named files from a copy; read a step of another run with load(path, ...)"
        )

    def peek(self, name: str) -> tuple[int, dict[str, Any] | None] | None:
        """Reads the state of one object in the newest step, and no array.

        Proves the manifest and that state alone. A step in which they are damaged is passed over.

        Args:
            name: Name of the item.

        Returns:
            The step and the state, or None for the state if the step has no such object. None
            without any readable step.
        """
        self._settle()
        passed: set[int] = set()
        while (candidate := self._next(None, passed)) is not None:
            number, run, _ = candidate
            readable, state = reading.state_of(self._root, number, name, run=run)
            if readable:
                return number, state
            passed.add(number)
        return None

    def wait(self) -> None:
        """Waits until the last save and its checksums are durable. Raises RuntimeError if not.

        One process of several, while an exception is on its way that came after the save, does not
        wait. The save goes on, and a loss is logged at the end of the process.
        """
        if not agree.is_leaving(self._handled):
            self._settle()

    def close(self) -> None:
        """Same as `wait`; also frees the root for other writers, if it has waited."""
        if agree.is_leaving(self._handled):
            return
        try:
            self._settle()
        finally:
            writer_of(self._root).leave(self)

    def _settle(self) -> None:
        """Waits for the last save. A process whose part failed raises alone: the others wait for
        that part, up to Orbax's limit, and not here.
        """
        pending, self._pending = self._pending, None
        if pending is None or pending.process != os.getpid():  # a forked child's parent saves it
            return
        error = pending.done.exception()
        pending.is_known = True
        if error is None:
            agree.gather(None)
            return
        if agree.is_primary():
            retention.delete_leftovers(self._root, step=pending.step)
        self._tidied = False
        raise RuntimeError(
            f"step {pending.step} must be written to {self._root} whole, got {error!r}; "
            f"{committed_steps(self._root)} are intact: {failing.advice(error)}, then save again"
        ) from error

    @property
    def failed_deletions(self) -> int:
        """Number of deletions by retention that failed. The next save tries them again."""
        return self._pruner.failures

    def steps(self) -> list[SavedStep]:
        """Returns the committed steps, oldest first."""
        return described_steps(self._root)

    def _refusal(self, step: int, writer: Writer) -> ValueError | OSError | RuntimeError | None:
        """Makes room for the step, on one process. Returns the objection, if any."""
        if not agree.is_primary():
            return None
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            writer.lock.hold()
            self._tidy()
            if step in committed_steps(self._root):
                return self._set_aside(step)
        except (OSError, ValueError, RuntimeError) as error:
            return error
        return None

    def _tidy(self) -> None:
        """Prepares the root for the first save, or after one that failed."""
        if not self._tidied:
            retention.delete_leftovers(self._root)
            self._damaged |= misplaced_steps(self._root, begin_run(self._root))
            self._tidied = True

    def _set_aside(self, step: int) -> ValueError | None:
        if step not in self._damaged:
            return ValueError(
                f"a step must be new, got step={step}, which exists in {self._root}; "
                "restore the newest step and go on from it, or use another root"
            )
        aside = retention.set_aside(self._root, step)
        _logger.warning("step %d was damaged and is saved again; the old one: %s", step, aside)
        return None

    def _complete(self, step: int, response: _compat.Response, writer: Writer) -> None:
        """Runs in the background: commit, checksums, retention."""
        response.result()
        if not agree.is_primary():
            return
        if self._checksums:
            checksums.write(step_directory(self._root, step))
        if writer.lock.is_held():  # else the next save says who has it
            self._pruner.prune(self._damaged)

    def _next(
        self, step: int | None, seen: set[int]
    ) -> tuple[int, str | None, tuple[Problem, ...]] | None:
        """Returns the newest step not in `seen`, the run, and the problems of the run's file.

        None if no step is left. Lists anew: a run may save meanwhile.
        """
        run, bad = run_of_root(self._root)
        listed = [committed_steps(self._root), run, [(x.where, x.reason) for x in bad]]
        committed, run, bad = agree.gather(listed)[0]
        if step is not None and step not in committed:
            raise ValueError(
                f"step must be one that was saved, got step={step} where {self._root} has "
                f"{committed or 'none'}; {other_step(committed)}"
            )
        numbers = committed if step is None else [step]
        newest = max((number for number in numbers if number not in seen), default=None)
        if newest is None:
            return None
        return newest, run, tuple(Problem(where=where, reason=reason) for where, reason in bad)

    def _check_deleted(self, deleted: set[int]) -> None:
        if len(deleted) == _LISTS:
            raise RuntimeError(
                f"a step must stay until it is read, got {_LISTS} steps of {self._root} deleted "
                "meanwhile; give the Store that saves there a larger Retention(latest=...)"
            )

    def _judged(self, report: StepReport) -> StepReport:
        if report.problems or report.verified or self._verify == "recorded":
            return report
        problem = Problem(where="manifest", reason="the step has no digests and verify='always'")
        return replace(report, problems=(problem,))


def _prepared(items: Mapping[str, Any]) -> tuple[Checked, Exception | None]:
    """Returns the checked items, and the objection to them, if any: processes may differ."""
    try:
        return check(items), None
    except Exception as error:
        return Checked(trees={}, leaves={}, states={}), error
