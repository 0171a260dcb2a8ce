# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One launch of a run: its record, and its corpora, training and export. Every process calls it."""

import contextlib
import dataclasses
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from jax.sharding import Mesh

import dovetail_stack
from dovetail_checkpoint import on_signal
from dovetail_data import Rows, batches, budget
from dovetail_runs import Launch, Run, devices_of
from dovetail_stack import profiling, rewinding, settings, text_jobs
from dovetail_stack.job import Job
from dovetail_stack.launch_settings import accepting, agreed, jobs_of
from dovetail_stack.processes import is_first, on_first, say, shared
from dovetail_stack.progress import Bar, Lines
from dovetail_stack.recipes import fitting
from dovetail_stack.recipes.fitting import Recipe, evaluated_batches, fit
from dovetail_stack.settings import Pretrain, Settings, load
from dovetail_stack.supervision import Supervision
from dovetail_train import BadStep, Eval, Hook, Sink, gather_module, process_shard
from dovetail_train.mesh.processes import first

MOST_PASSES = 4  # over the text, for --minutes: more would train on what is known by heart
EVALUATIONS = 8  # of the held-out loss in a run


def launch(
    values: dict[str, Any],
    out: Path,
    *,
    mesh: Mesh,
    command: Sequence[str],
    changes: Mapping[str, Sequence[Any]] | None = None,
    supervision: Supervision | None = None,
) -> bool:
    """Trains a run to its end, or resumes it, and records the launch.

    Args:
        values: Parsed options by name.
        out: Directory of the run.
        mesh: Devices.
        command: Arguments of the command `dovetail`.
        changes: Settings that were changed before, for the record.
        supervision: See `execute`. The lock of the run is then held already.

    Returns:
        False if it was stopped early. Its state is then saved.
    """
    recorded, axes = Run(out), {k: n for k, n in mesh.shape.items() if n > 1}
    with contextlib.ExitStack() as stack:
        if supervision is None and not out.is_file():  # a file is refused below
            # Before the settings: another command may just have stored those of its run.
            on_first(lambda: stack.enter_context(recorded.locked()))
        run = agreed(values, out, mesh)

        def begin() -> Launch:
            changed = {**settings.changes(load(out), run), **(changes or {})}
            if run.rewind is not None:
                changed |= rewinding.changes(run, out)
            launch = recorded.launch(
                changes=changed,
                command=["dovetail", *command],
                seeds={"seed": run.training.seed},
                devices={**devices_of(mesh.devices.flat), "mesh": axes},
                code=dovetail_stack.__file__,
                generation=None if supervision is None else supervision.context.generation,
            )
            return stack.enter_context(launch)

        record = shared(begin, Launch)  # others than process 0 record nothing
        made = rewinding.completed(run, out) if run.rewind is not None else run
        mode = values.get("resume", "exact")
        with accepting(made):
            done = execute(made, out, record, mesh=mesh, resume=mode, supervision=supervision)
        record.outcome = "finished" if done else "interrupted"
    return done


class _Accepted:
    """A sink that stores changed settings once the trainer has accepted them.

    It is written to before a checkpoint of the changed run: a refused launch changes nothing.
    """

    def __init__(self, run: Settings, out: Path) -> None:
        self._run, self._out = run, out

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._run != load(self._out):
            self._run.save(self._out)


def execute(
    run: Settings,
    out: Path,
    record: Launch,
    *,
    mesh: Mesh,
    resume: Literal["exact", "convert"] = "exact",
    supervision: Supervision | None = None,
) -> bool:
    """Trains a run to its end and exports it, or resumes it. Every process calls it.

    `run.json` follows the first step.

    Args:
        run: Settings.
        out: Directory of the run.
        record: The launch, which receives samples.
        mesh: Devices.
        resume: See `recipes.fitting.fit`.
        supervision: The job on many hosts to which this process belongs. Default: none.

    Returns:
        False if a signal or the job stopped the run early. Its state is then saved.
    """
    job = jobs_of(run).job_of(run, out, mesh, record)
    if isinstance(run, Pretrain) and job.ids is not None:
        run = text_jobs.with_ids(run, job.ids, out)
    steps = run.duration.steps
    if steps is None:
        steps = first(_plan(run, job.recipe, job.rows))
        if is_first():
            run.with_steps(steps).save(out)
    if job.begin is not None:
        job.begin(steps)
    say(str(budget(job.rows, steps=steps, global_batch=run.training.global_batch)))
    hooks = [*_evaluations(job, mesh=mesh, every=max(1, steps // EVALUATIONS)), *job.hooks]
    traced = run.monitoring.traced
    traces = profiling.hooks(out, *traced) if traced else []
    hooks += traces
    if supervision is not None:
        hooks = supervision.in_phases(hooks)
    # The module as it was trained, with adapters that are not merged.
    recipe = dataclasses.replace(job.recipe, finished=lambda module: module)
    with _watched(steps, supervision) as (stop, sinks):
        options = {"steps": steps, "hooks": hooks, "stop": stop, "resume": resume}
        options["leave_out"] = [range(first, end) for first, end in run.leave_out]
        options["before"] = lambda module: _sample(job, module, step=0)
        if supervision is not None:
            options["wrap"] = supervision.context.store
        sinks = [_Accepted(run, out), *sinks]
        with _typed_advice(out, steps):
            module, result = fit(recipe, job.rows, out, sinks=sinks, **options)
    phase = contextlib.nullcontext if supervision is None else supervision.phase
    if traces:
        with phase("profile"):
            on_first(lambda: profiling.write_page(out))
    if not result.interrupted:
        with phase("export"):
            _sample(job, module, step=steps)
            trained = gather_module(module)
            on_first(lambda: job.export(trained, out))
    return not result.interrupted


@contextlib.contextmanager
def _typed_advice(out: Path, steps: int) -> Iterator[None]:
    """Ends the message of a bad step with options of the command."""
    try:
        yield
    except BadStep as error:
        saved = rewinding.checkpoints(out)
        advice = rewinding.advice(error.skipped, saved, steps=steps)
        error.args = (f"{error.found}; {advice}",)
        raise


@contextlib.contextmanager
def _watched(
    steps: int, supervision: Supervision | None
) -> Iterator[tuple[Callable[[int], bool], list[Sink]]]:
    """Yields the trainer's `stop` and the sinks for progress."""
    if supervision is not None:
        yield supervision.context.stop, [Lines(steps=steps), supervision.context.progress]
        return
    with on_signal(signal.SIGINT, signal.SIGTERM) as stop:
        if sys.stderr.isatty():
            with Bar(steps=steps) as bar:
                yield stop.poll, [bar]
        else:  # a bar in a file is one long line
            yield stop.poll, [Lines(steps=steps)]


def _sample(job: Job, module: Any, *, step: int) -> None:
    """Samples text at the beginning or the end of a run, if the job asks for it."""
    if job.at_ends is not None:
        job.at_ends.write(module, step)
        job.at_ends.close()


def _plan(run: Settings, recipe: Recipe, rows: Rows) -> int:
    """Returns the steps of a new run: one pass over the text, or as many as fit the minutes."""
    one_pass = math.ceil(len(rows) * rows.unit / run.training.global_batch)
    if run.duration.minutes is None:
        return one_pass
    say("Timing a few steps to plan the run.")
    fits = fitting.steps_in(60 * run.duration.minutes, recipe, rows)
    steps = min(fits, MOST_PASSES * one_pass)
    say(
        f"{steps} steps: {steps / one_pass:.2f} passes over the text"
        + ("" if steps == fits else f" (the time would fit {fits})")
    )
    return steps


def _evaluations(job: Job, *, mesh: Mesh, every: int) -> list[Hook]:
    """Returns hooks for the measures of held-out rows, also of averaged parameters."""
    batching = job.recipe.batching
    size = batching.global_batch
    whole = batches(job.held_out, global_batch=size, seed=None, epochs=1, shard=process_shard(mesh))
    held_out = list(islice(job.recipe.batches(whole), evaluated_batches(size)))
    kinds = (False, True) if batching.ema else (False,)
    return [Eval(held_out, every=every, ema=ema, metrics=job.metrics) for ema in kinds]
