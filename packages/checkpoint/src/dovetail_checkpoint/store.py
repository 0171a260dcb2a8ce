# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's checkpoints: save without waiting, restore the newest step that is proven intact."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from dovetail_checkpoint import _compat, agree, checksums, reading, retention
from dovetail_checkpoint.contents import contents
from dovetail_checkpoint.metrics import checked
from dovetail_checkpoint.report import IntegrityReport, Problem, StepReport
from dovetail_checkpoint.retention import Retention, SavedStep
from dovetail_checkpoint.target import Stateful

_logger = logging.getLogger(__name__)
_RETENTION = Retention(latest=3)


class Store:
    """The steps under `root`, one directory each, readable by plain Orbax.

    Every process of a run makes the same calls, on its main thread. A context manager: leaving it
    waits for the last save.

    root: a directory; made by the first save.
    every: `due(step)` is true for its multiples; None: never.
    retention: which steps stay once newer ones have their checksums.
    verify: "recorded" checks what a step recorded and restores a step of plain Orbax unchecked;
        "always" treats a step without manifest as damaged.
    checksums: whether files are hashed after each commit, in the background.
    compress: zstd. Off, since it triples the time of a save for 14% of random float32.
    timeout_s: the most that the writing of one step may take.

    >>> with Store("run") as store:
    ...     store.save(10, model={"w": jnp.ones(3)})
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
        self._root = Path(root).absolute()
        self._every = every
        self._retention = retention
        self._verify = verify
        self._checksums = checksums
        self._compress = compress
        self._timeout_s = timeout_s
        # One thread that stays: to start one while Orbax is busy in others takes 10 ms.
        self._background = ThreadPoolExecutor(1, thread_name_prefix="dovetail-save")
        self._pending: tuple[int, Future[None]] | None = None
        self._tidied = False
        self._damaged: set[int] = set()
        self.report = IntegrityReport()

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
        """Whether `step` is a positive multiple of `every`."""
        return self._every is not None and step > 0 and step % self._every == 0

    def save(
        self, step: int, *, metrics: Mapping[str, float | int] | None = None, **items: Any
    ) -> None:
        """Starts the commit of all `items` as `step`; returns when arrays may be donated.

        metrics: finite numbers by name, the same on every process, which `Retention` may compare.
        items: pytrees of arrays, typed keys and numbers, or objects with get_state/set_state.
        Waits for the save before it. Raises RuntimeError if that one failed, ValueError if the
        step exists (a step that the last restore found damaged is renamed and kept), and
        ValueError or TypeError for items that cannot be stored.
        """
        self.wait()
        _check_step(step)
        numbers = checked(metrics)
        parts = contents(items, numbers)
        agree.raise_together(self._refusal(step))  # nobody writes before there is room
        response = _compat.save(
            retention.step_directory(self._root, step),
            trees=parts.trees,
            documents=parts.documents,
            manifest=parts.manifest,
            metrics=numbers,
            compress=self._compress,
            timeout_s=self._timeout_s,
        )
        self._damaged.discard(step)
        self._pending = step, self._background.submit(self._complete, step, response)

    def restore(
        self, *, step: int | None = None, **targets: Any
    ) -> tuple[int, dict[str, Any]] | None:
        """The newest step that every process proves intact, and its items; None if there is none.

        targets: pytrees of jax.ShapeDtypeStruct with shardings (one process may leave them out),
        of arrays or of numbers, which give the structure and the kind of each restored leaf; or
        objects, whose state is set once everything else is read and proven.
        step: this one and no other.

        What was tried is in `report`; damaged steps are also logged and stay on disk. Raises
        ValueError if the step holds another model, RuntimeError if no step is intact.
        """
        self.wait()
        if not targets:
            raise ValueError(
                "restore needs at least one target, got none; restore(model=jax.eval_shape(init))"
            )
        tried = []
        for number in self._candidates(step):
            report, items = reading.read(self._root, number, targets)
            report = self._judged(report)
            tried.append(report)
            self.report = IntegrityReport(steps=tuple(tried))
            if not report.problems:
                return number, _with_states(items, targets)
            self._damaged.add(number)
            _logger.warning("%s: %s; trying the step before it", self._root, report)
        if not tried:
            return None
        raise RuntimeError(
            f"one step in {self._root} must be intact, got only damaged ones:\n{self.report}\n"
            "restore the named files from a copy, or start again with another root"
        )

    def wait(self) -> None:
        """Waits until the last save is durable, checksums too; raises RuntimeError if it failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        step, done = pending
        error = done.exception()
        failed = [text for text in agree.gather(error and repr(error)) if text]
        if not failed:
            return
        if agree.is_primary():
            retention.delete_leftovers(self._root, step=step)
        self._tidied = False
        raise RuntimeError(
            f"step {step} must be written to {self._root} whole, got {failed[0]}; "
            f"{retention.committed_steps(self._root)} are intact: free space or fix the directory, "
            "then save again"
        ) from error

    def close(self) -> None:
        """The same as `wait`: nothing else is held."""
        self.wait()

    def steps(self) -> list[SavedStep]:
        """The committed steps, oldest first."""
        return retention.described_steps(self._root)

    def _refusal(self, step: int) -> ValueError | OSError | None:
        """Makes room for the step, on one process; what is against it."""
        if not agree.is_primary():
            return None
        if step in retention.committed_steps(self._root) and step not in self._damaged:
            return ValueError(
                f"a step must be new, got step={step}, which exists in {self._root}; "
                "restore the newest step and go on from it, or use another root"
            )
        try:
            self._make_room(step)
        except OSError as error:
            return error
        return None

    def _make_room(self, step: int) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        if not self._tidied:
            retention.delete_leftovers(self._root)
            self._tidied = True
        if step in self._damaged and retention.step_directory(self._root, step).exists():
            aside = retention.set_aside(self._root, step)
            _logger.warning("step %d was damaged and is saved again; the old one: %s", step, aside)

    def _complete(self, step: int, response: _compat.Response) -> None:
        """Runs in the background: commit, checksums, retention."""
        response.result()
        if not agree.is_primary():
            return
        if self._checksums:
            checksums.write(retention.step_directory(self._root, step))
        retention.retain(
            self._root, self._retention, damaged=self._damaged, checked_only=self._checksums
        )

    def _candidates(self, step: int | None) -> list[int]:
        committed = agree.gather(retention.committed_steps(self._root))[0]
        if step is None:
            return sorted(committed, reverse=True)
        if step not in committed:
            raise ValueError(
                f"step must be one that was saved, got step={step}; {self._root} holds {committed}"
            )
        return [step]

    def _judged(self, report: StepReport) -> StepReport:
        if report.problems or report.verified or self._verify == "recorded":
            return report
        problem = Problem(where="manifest", reason="the step has no digests and verify='always'")
        return StepReport(path=report.path, verified=False, problems=(problem,))


def _check_step(step: int) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(
            f"step must be an int from 0 on, got step={step!r}; use int(step) of the loop's counter"
        )


def _with_states(items: dict[str, Any], targets: dict[str, Any]) -> dict[str, Any]:
    """Sets the states of the objects, which take the place of their states."""
    restored = dict(items)
    for name, wanted in targets.items():
        if isinstance(wanted, Stateful):
            wanted.set_state(items[name])
            restored[name] = wanted
    return restored
