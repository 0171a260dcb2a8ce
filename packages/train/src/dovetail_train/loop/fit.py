# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of `Trainer.fit`: dispatch ahead, read late, save only checked states.

Steps n + 1 and n + 2 are on their way to the device before the loop waits for the result of step n.
A save or a hook first reads every result, so a step is checked before its state is used.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from dovetail_train.logs.sinks import Sink
from dovetail_train.loop.clock import (
    Activity,
    Announcer,
    Clock,
    Completions,
    Rates,
    Throughput,
)
from dovetail_train.loop.hooks import INTERRUPTED, Closable, Hook, StopRun, call
from dovetail_train.loop.prefetch import DrawnData, Draws, Prefetch, iterated
from dovetail_train.loop.progress import Progress, StopsTogether
from dovetail_train.loop.stragglers import Stragglers
from dovetail_train.mesh.mesh import ambient
from dovetail_train.mesh.processes import Compared, receiving
from dovetail_train.resume.resume import Beginning, Description, Mode, restore
from dovetail_train.step.checks import check_run
from dovetail_train.step.guard import Skipped, Verdicts
from dovetail_train.step.metrics import Metrics, finite
from dovetail_train.step.state import State, train_item
from dovetail_train.store import Store, takes_metrics

# Results are read this many steps late: one step runs, one is queued, and the device never waits.
_LATE = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of `fit`.

    Attributes:
        state: Final state.
        step: Number of updates in all.
        interrupted: Whether `stop` or a hook ended the run before `steps`, or before the hooks of
            its last step.
        scalars: Scalars of the last step; empty if no step was left to run.
        seconds: Wall time by activity (see `Clock`), with that of earlier launches up to their last
            save.
    """

    state: State
    step: int
    interrupted: bool
    scalars: dict[str, float]
    seconds: dict[str, float]

    def __repr__(self) -> str:
        loss = f", loss={self.scalars['loss']:.4g}" if "loss" in self.scalars else ""
        seconds = sum(self.seconds.values())
        return (
            f"Result(step={self.step}, interrupted={self.interrupted}{loss}, {seconds:.1f} s; "
            f"also: state, scalars, seconds)"
        )


@runtime_checkable
class Running(Protocol):
    """The trainer, as the loop uses it."""

    mesh: Any
    guard: Any
    max_skips: int

    def step(self, state: State, batch: Any) -> tuple[State, Metrics]: ...
    def place(self, batch: Any) -> dict[str, jax.Array]: ...
    def rates(self, state: State, batch: Any) -> Rates: ...


class Run:
    """One call of `fit`.

    Args:
        trainer: The trainer.
        data: Batches.
        begin: Start of the run.
        steps: See `Trainer.fit`.
        resume: See `Trainer.fit`.
        store: See `Trainer.fit`.
        save_every: See `Trainer.fit`.
        sinks: See `Trainer.fit`.
        hooks: See `Trainer.fit`.
        stop: See `Trainer.fit`.
        now: Clock of the run, in seconds.
    """

    @jax.transfer_guard("allow")  # the user's guard is for the steps of training
    def __init__(
        self,
        trainer: Running,
        data: Iterable[Any] | DrawnData,
        *,
        begin: Beginning,
        steps: int,
        resume: Mode,
        store: Store | None,
        save_every: int | None,
        sinks: Sequence[Sink],
        hooks: Sequence[Hook],
        stop: Callable[[int], bool] | None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        iterator = iterated(data)
        check_run(
            iterator,
            steps=steps,
            save_every=save_every,
            store=store,
            sinks=sinks,
            hooks=hooks,
            resume=resume,
        )
        self._announcer = Announcer(sinks)
        self._trainer, self._steps, self._stop = trainer, steps, stop
        self._store, self._save_every = store, save_every
        self._sinks, self._hooks = sinks, hooks
        self._now, self._completions = now, Completions(now)
        self._clock, self._throughput = Clock(now), Throughput(now=now)
        skipped = Skipped()
        self._progress = Progress(self._clock, hooks, skipped)
        self._stops = StopsTogether(hooks)
        place = self._announcer.before("place", Compared(trainer.place, trainer.mesh))
        self._data = (
            Draws(iterator, place) if isinstance(iterator, DrawnData) else Prefetch(iterator, place)
        )
        self._pending: deque[_Dispatched] = deque()
        self._shapes: set[Any] = set()
        self._scalars: dict[str, float] = {}
        self._measured: dict[str, float] = {}  # by the hooks of the newest step, finite
        self._saved: int | None = None
        self._description = Description(begin)
        self._state = self._restore(begin, resume) or begin.build()
        self._start = int(self._state.step)
        self._verdicts = Verdicts(
            trainer.guard,
            trainer.max_skips,
            in_a_row=int(self._state.skips.in_a_row),
            record=skipped,
            names=begin.target.params,
            params=begin.params if self._start == 0 else None,
        )

    def _restore(self, begin: Beginning, mode: Mode) -> State | None:
        if self._store is None:
            return None
        self._announcer.begin("restore")
        objects = {"data": self._data, "hooks": self._progress}
        with ambient(self._trainer.mesh):
            state = restore(
                begin, self._store, self._description, mode=mode, steps=self._steps, **objects
            )
        self._saved = None if state is None else int(state.step)
        return state

    def run(self) -> Result:
        step, interrupted = self._start, False
        self._stragglers: Stragglers | None = None
        if jax.process_count() > 1:
            devices = self._state.step.sharding.addressable_devices
            self._stragglers = Stragglers(self._clock, devices)
        self._clock.enter("step")
        try:
            if pending := self._progress.pending_hooks:
                interrupted = self._finish(step, self._due(step)[-pending:])
            while step < self._steps and not interrupted:
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    self._advance(step)
                step += 1
                interrupted = self._finish(step, self._due(step))
                self._compare(step)
                if self._save_every and step % self._save_every == 0:
                    self._save(step)
            self._drain()
            self._save(step)
            if self._stragglers is not None:
                self._stragglers.compare(step, last=True)
            self._account(step)
        except BaseException as error:
            self._close(error)
            raise
        self._close()
        if not interrupted:
            self._verdicts.end(step)
        return Result(
            state=self._state,
            step=step,
            interrupted=interrupted,
            scalars=self._scalars,
            seconds=self._clock.end(),
        )

    def _close(self, error: BaseException | None = None) -> None:
        """Finishes pending saves and closes hooks and sinks, however the run ended.

        After an error it waits for no other process, which may be elsewhere: a hang would hide the
        error. What fails in closing then is a note of the error.
        """
        self._clock.enter("save")
        waits = error is None or jax.process_count() == 1
        try:
            with contextlib.ExitStack() as last_first:
                for closable in reversed((*self._hooks, *self._sinks)):
                    if isinstance(closable, Closable):
                        last_first.callback(closable.close)
                if waits and self._store is not None:
                    last_first.callback(self._store.wait)
                last_first.callback(self._completions.close, wait=waits)
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"While the run was closed after it: {second!r}")

    def _advance(self, step: int) -> None:
        """Dispatches update `step`, fetches the next batch meanwhile, and reads an old result."""
        self._announcer.begin("data")
        batch = self._next_batch(step)
        self._description.see(step, next(iter(batch.values())).shape[0])
        shapes = tuple((name, x.shape, x.dtype) for name, x in batch.items())
        fresh = shapes not in self._shapes
        if fresh:
            self._begin_compile(batch)
        sent_s = self._now()
        self._state, metrics = self._trainer.step(self._state, batch)
        self._completions.add(metrics.scalars["loss"])
        self._clock.enter("step")
        self._pending.append(_Dispatched(step=step, metrics=metrics, batch=batch, sent_s=sent_s))
        if fresh:
            self._announcer.begin("step")
            self._shapes.add(shapes)
            self._drain()
        if step + 1 < self._steps and isinstance(self._data, Prefetch):
            self._fetch(self._data)
        while self._pending and (len(self._pending) > _LATE or self._completions.has_next()):
            self._read()

    def _begin_compile(self, batch: Any) -> None:
        self._drain()
        self._clock.enter("compile")
        if not self._shapes:
            self._announcer.begin("compile")
            self._throughput = Throughput(self._trainer.rates(self._state, batch), self._now)
        self._throughput.pause()

    def _next_batch(self, step: int) -> Any:
        if isinstance(self._data, Draws):
            return self._draw(self._data, step)
        self._fetch(self._data)
        for batch in self._data:
            return batch
        self._save(step)
        raise ValueError(
            f"data must give a batch for each of the steps, got {step - self._start} batches from "
            f"step {self._start} on where steps={self._steps}; repeat the data or pass steps={step}"
        )

    def _draw(self, data: Draws, step: int) -> Any:
        self._drain()
        self._clock.enter("draw")
        batch = data.draw(self._trainer, self._state, step)
        self._clock.enter("step")
        self._throughput.resume()
        return batch

    def _fetch(self, data: Prefetch) -> None:
        self._charge_idle("stall")
        data.fill()
        self._charge_idle("data")

    def _charge_idle(self, activity: Activity) -> None:
        """Charges the time since the devices ran out of work to an activity."""
        self._clock.charge(activity, since=self._completions.idle_since())

    def _due(self, step: int) -> list[Hook]:
        return [hook for hook in self._hooks if step % hook.every == 0]

    def _finish(self, step: int, due: Sequence[Hook]) -> bool:
        """Calls the hooks after an update. Returns True if `stop` or a hook ends the run."""
        self._progress.pending_hooks, self._measured = len(due), {}
        stopped = self._is_stopped(step)
        if due:
            self._drain()
            self._clock.enter("hooks")
            while self._progress.pending_hooks and not stopped:
                hook = due[-self._progress.pending_hooks]
                scalars = call(
                    hook, self._trainer, self._state, step, stopped=lambda: self._is_stopped(step)
                )
                stopped = scalars is INTERRUPTED
                if scalars is not INTERRUPTED:
                    self._progress.pending_hooks -= 1
                    self._measured |= finite(scalars)
                    self._write(step, scalars)
                    ends = self._ends(scalars, hook)
                    stopped = self._is_stopped(step) or ends
            self._account(step)
            self._clock.enter("step")
            self._throughput.resume()
        return stopped and (step < self._steps or self._progress.pending_hooks > 0)

    def _ends(self, scalars: Mapping[str, float], hook: Hook) -> bool:
        """Tests whether a hook has ended the run, on any process."""
        ends = isinstance(scalars, StopRun)
        if self._stragglers is None:
            return ends
        with self._stragglers.waiting():
            return self._stops.agree(ends, hook)

    def _is_stopped(self, step: int) -> bool:
        return self._stop is not None and self._stop(step)

    def _account(self, step: int) -> None:
        """Sends the account of time to the sinks, and the slowest process."""
        seconds = {f"seconds/{k}": v for k, v in self._clock.seconds().items()}
        self._write(step, seconds | (self._stragglers.scalars if self._stragglers else {}))

    def _compare(self, step: int) -> None:
        """Looks for a slow process if it is time to. A collective, also without hooks."""
        if self._stragglers is None or not self._stragglers.is_due(step):
            return
        self._drain()
        self._clock.enter("hooks")
        self._stragglers.compare(step)
        self._account(step)
        self._clock.enter("step")
        self._throughput.resume()

    def _save(self, step: int) -> None:
        if self._store is None or self._saved == step:
            return
        self._drain()
        self._clock.enter("save")
        measured = self._progress.agree(self._measured)
        metrics = {"metrics": measured} if takes_metrics(self._store) else {}
        with ambient(self._trainer.mesh):
            self._store.save(
                step,
                **metrics,
                params=self._state.params,
                train=train_item(self._state),
                data=self._data,
                hooks=self._progress,
                description=self._description,
            )
        self._saved = step
        self._clock.enter("step")
        self._throughput.resume()

    def _drain(self) -> None:
        while self._pending:
            self._read()
        self._charge_idle("stall")

    def _read(self) -> None:
        done, completion = self._pending.popleft(), self._completions.next()
        scalars = done.metrics.read()
        with ambient(self._trainer.mesh):
            self._verdicts.check(
                done.step, scalars, metrics=done.metrics, batch=done.batch, saved=self._saved
            )
        scalars |= self._throughput.result(
            completion,
            sent_s=done.sent_s,
            tokens=scalars.get("tokens"),
            rows=next(iter(done.batch.values())).shape[0],
        )
        if scalars.get("skipped"):
            self._clock.move(scalars.get("step_time_s", 0.0), to="skipped")
        scalars["goodput"] = self._clock.goodput()
        self._scalars = scalars
        self._write(done.step, scalars)

    def _write(self, step: int, scalars: Mapping[str, float]) -> None:
        for sink in receiving(self._sinks):
            sink.write(step, scalars)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Dispatched:
    """A step on its way."""

    step: int
    metrics: Metrics
    batch: Any
    sent_s: float  # before the dispatch
