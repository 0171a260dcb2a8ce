# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A continuous sampler: captures a few steps now and then, and returns scalars of their time.

Start, stop and analysis of a sample take CPU time of the loop's thread. The monitor measures it,
and begins a sample only if one as dear as the dearest so far keeps the sum within `budget` of the
CPU time of the process. A short run may have no sample.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dovetail_profile.capture import capture
from dovetail_profile.profile import Profile

_FIRST_S = 0.1  # CPU seconds assumed of the first sample: of a small program, with imports
_log = logging.getLogger(__name__)


@runtime_checkable
class Sink(Protocol):
    """Receives scalars: a sink of dovetail_train, or a launch of dovetail_runs."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None: ...


class Budget:
    """The CPU time of samples, within a share of that of the process.

    Args:
        share: Largest share.
        process_s: CPU seconds of all threads of the process.
        thread_s: CPU seconds of this thread, the one of samples.
    """

    def __init__(
        self,
        share: float,
        *,
        process_s: Callable[[], float] = time.process_time,
        thread_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share, self._process_s, self._thread_s = share, process_s, thread_s
        self._begun_s = process_s()
        self._spent_s = self._sample_s = self._dearest_s = 0.0

    @contextlib.contextmanager
    def charge(self) -> Iterator[None]:
        """Adds the time of the block to the current sample."""
        begun = self._thread_s()
        try:
            yield
        finally:
            self._sample_s += self._thread_s() - begun

    def end(self) -> None:
        """Ends the current sample."""
        self._spent_s += self._sample_s
        self._dearest_s, self._sample_s = max(self._dearest_s, self._sample_s), 0.0

    def affords(self) -> bool:
        """Returns whether one more sample keeps the share."""
        elapsed_s = self._process_s() - self._begun_s
        return self._spent_s + (self._dearest_s or _FIRST_S) <= self._share * elapsed_s

    @property
    def fraction(self) -> float:
        """The share so far."""
        elapsed_s = self._process_s() - self._begun_s
        return (self._spent_s + self._sample_s) / elapsed_s if elapsed_s > 0 else 0.0


class Monitor:
    """Samples a training loop within a budget of CPU time.

    Call `step` first in each iteration of a loop, or pass the monitor to dovetail_train as a hook.
    Each sample has these scalars:

    - profile/compute_fraction, input_fraction, idle_fraction: shares of the wall time of its steps,
      see `StepRow`.
    - profile/top_op_share: share of the dearest instruction.
    - profile/cost_fraction: share of all samples of the CPU time of the process.
    - profile/samples, profile/skipped: samples so far, and those skipped because they failed or
      another trace ran. The log has the reasons.

    Args:
        every: Steps from a sample to the next. The budget makes it longer, in multiples.
        steps: Steps of a sample, on the first of several processes.
        budget: Largest share of CPU time for samples.
        sink: Receives the scalars under the step of a sample's end. A trainer needs none.
        directory: Keeps the traces, each in the folder stepN. None keeps none.

    Attributes:
        scalars: Of the last sample; empty before.

    Raises:
        ValueError: A number is out of range.

    Example:

        >>> monitor = Monitor(every=1000)
        >>> for i in range(3):
        ...     monitor.step(i)
        >>> monitor.close()
    """

    def __init__(
        self,
        *,
        every: int = 1000,
        steps: int = 3,
        budget: float = 0.01,
        sink: Sink | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if not (1 <= steps < every and 0 < budget <= 1):
            raise ValueError(
                "steps must be at least 1 and below every, and budget a share above 0 and at most "
                f"1, got every={every}, steps={steps}, budget={budget}; write for example "
                "Monitor(every=1000, steps=3, budget=0.01)"
            )
        self.every, self._interval, self._steps = every, every, steps
        self._sink, self._directory = sink, directory
        self._budget = Budget(budget)
        self._sample: tuple[Profile, contextlib.ExitStack] | None = None  # and its open capture
        self._stop: int | None = None  # the step of a sample's end
        self._next = 0  # the step before which `step` has nothing to do
        self._annotation = contextlib.ExitStack()
        self._samples = self._skipped = 0
        self.scalars: Mapping[str, float] = {}

    def step(self, i: int) -> None:
        """Begins step `i`; numbers rise. The first step compiles, so no sample has it.

        In a sample each step is annotated for the profiler, up to the next call.
        """
        if i < self._next:
            return
        self._annotation.close()
        if self._stop is None and self._next > 0:
            self._begin(i)
        elif self._stop is not None and i >= self._stop:
            self._end(i)
        if self._sample is None:
            self._stop, self._next = None, (i // self._interval + 1) * self._interval
            return
        import jax

        self._next = i + 1
        self._annotation.enter_context(jax.profiler.StepTraceAnnotation("step", step_num=i))

    def __call__(self, trainer: Any, state: Any, step: int) -> Mapping[str, float]:
        """Begins or ends a sample, as a hook of a trainer. The trainer annotates its steps.

        While a sample runs, `every` is the step of its end. All processes are called at the same
        steps, also those without a trace.
        """
        import jax

        if self._stop is None:
            scalars = self._begin(step) if jax.process_index() == 0 else {}
            self._stop = self.every = step + self._steps
        else:
            scalars = self._end(step) if self._sample is not None else {}
            self._stop, self.every = None, self._interval
        return scalars

    def close(self) -> None:
        """Ends a running sample, without scalars. The monitor can be used again."""
        self._annotation.close()
        if self._sample is not None:
            self._end(None)
        self._stop, self._next, self.every = None, 0, self._interval

    def _begin(self, step: int) -> Mapping[str, float]:
        """Opens a capture if the budget has room. Returns scalars if it failed."""
        if not self._budget.affords():
            return {}
        keep = None if self._directory is None else Path(self._directory, f"step{step}")
        with contextlib.ExitStack() as block, self._budget.charge():
            try:
                profile = block.enter_context(capture(keep=keep))
            except (RuntimeError, OSError) as error:
                return self._skip(step, error)
            self._sample = profile, block.pop_all()
        self._stop = step + self._steps
        return {}

    def _end(self, step: int | None) -> Mapping[str, float]:
        """Closes the capture. Returns scalars, and sends them; without a step there are none."""
        assert self._sample is not None
        (profile, block), self._sample = self._sample, None
        try:
            with self._budget.charge():
                block.close()
                fractions = {} if step is None else _fractions(profile)
        except (RuntimeError, OSError, ValueError) as error:
            return self._skip(step, error)
        finally:
            self._budget.end()
        self._samples += 1
        return self._report(step, fractions)

    def _skip(self, step: int | None, error: Exception) -> Mapping[str, float]:
        """Counts an impossible sample: training goes on."""
        self._skipped += 1
        _log.warning("no sample at step %s: %s", step, error)
        return self._report(step, {})

    def _report(self, step: int | None, fractions: Mapping[str, float]) -> Mapping[str, float]:
        if step is None:
            return {}
        counts = {"samples": float(self._samples), "skipped": float(self._skipped)}
        values = {**fractions, "cost_fraction": self._budget.fraction, **counts}
        self.scalars = {f"profile/{name}": value for name, value in values.items()}
        if self._sink is not None:
            self._sink.write(step, self.scalars)
        return self.scalars


def _fractions(profile: Profile) -> dict[str, float]:
    """Returns shares of the wall time of steps, and of the time of instructions."""
    steps, ops = profile.steps(), profile.ops()
    wall = sum(row.wall_us for row in steps)
    values = {"top_op_share": ops[0].share} if len(ops) else {}
    for name in ("compute", "input", "idle") if wall else ():
        values[f"{name}_fraction"] = sum(steps.column(f"{name}_us")) / wall
    return values
