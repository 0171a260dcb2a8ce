# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the settings of a training run: corpora, training, export."""

import contextlib
import dataclasses
import functools
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from dovetail_stack import record_jobs, rewinding, text_jobs
from dovetail_stack.job import Job, evaluated_batches
from dovetail_stack.processes import gathered, is_first, on_first, say
from dovetail_stack.progress import Bar, Lines
from dovetail_stack.settings import FromRecords, FromText, Pretrain, Settings, load, option

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    from dovetail_data import Rows
    from dovetail_stack.recipes.fitting import Recipe
    from dovetail_stack.supervision import Supervision
    from dovetail_train import Estimate, Hook, Program, Sink

MOST_PASSES = 4  # over the text, for --minutes: more would train on what is known by heart
EVALUATIONS = 8  # of the held-out loss in a run
TRACE = "trace"
TRACED_STEPS = 5
S = TypeVar("S", bound=Settings)
P = ParamSpec("P")
R = TypeVar("R")


class _Accepted:
    """A sink that stores changed settings once the trainer has accepted them.

    It is written to before a checkpoint of the changed run: a refused launch changes nothing.
    """

    def __init__(self, run: Settings, out: Path) -> None:
        self._run, self._out = run, out

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._run != load(self._out):
            self._run.save(self._out)


def accepting(act: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Returns `act`, which opens directories with what the settings of its run accept."""

    @functools.wraps(act)
    def inside(run: S, *args: P.args, **options: P.kwargs) -> R:
        if not any(run.accepted.values()):
            return act(run, *args, **options)
        import dovetail_models

        with dovetail_models.accepting(**run.accepted):
            return act(run, *args, **options)

    return inside


def _store_ids(run: Pretrain, out: Path) -> None:
    """Stores the number of ids, and no other setting: those hold once a step was made."""
    stored = load(out)
    if isinstance(stored, Pretrain) and stored.vocabulary != run.vocabulary:
        replace = {"vocabulary": run.vocabulary, "asked": run.asked}
        dataclasses.replace(stored, **replace).save(out)


@accepting
def execute(
    run: Settings,
    out: Path,
    *,
    mesh: "Mesh",
    resume: Literal["exact", "convert"] = "exact",
    supervision: "Supervision | None" = None,
) -> bool:
    """Trains a run to its end and exports it, or resumes it. Every process calls it.

    `run.json` follows the first step.

    Args:
        run: Settings.
        out: Directory of the run.
        mesh: Devices.
        resume: See `recipes.fitting.fit`.
        supervision: The job on many hosts to which this process belongs. Default: none.

    Returns:
        False if a signal or the job stopped the run early. Its state is then saved.
    """
    from dovetail_data import budget
    from dovetail_stack.recipes.fitting import fit
    from dovetail_train.processes import first

    job = _job(run, out, mesh)
    if isinstance(run, Pretrain) and job.ids is not None:
        run = text_jobs.with_ids(run, job.ids)
        if is_first():
            _store_ids(run, out)
    steps = run.duration.steps
    if steps is None:
        steps = first(_plan(run, job.recipe, job.rows))
        if is_first():
            run.with_steps(steps).save(out)
    job.begin(steps)
    say(str(budget(job.rows, steps=steps, global_batch=run.training.global_batch)))
    hooks = [
        *_evaluations(job, mesh=mesh, every=max(1, steps // EVALUATIONS)),
        *_monitoring(run, job, out),
    ]
    if supervision is not None:
        hooks = supervision.in_phases(hooks)
    # The module as it was trained, with adapters that are not merged.
    recipe = dataclasses.replace(job.recipe, finished=lambda module: module)
    with _watched(steps, supervision) as (stop, sinks):
        options = {"steps": steps, "hooks": hooks, "stop": stop, "resume": resume}
        options["leave_out"] = [range(first, end) for first, end in run.leave_out]
        options["before"] = lambda module: _sample(job, module, step=0)
        if supervision is not None:
            options["wrap"] = supervision.wrap
        sinks = [_Accepted(run, out), *sinks]
        with _typed_advice(out, steps):
            module, result = fit(recipe, job.rows, out, sinks=sinks, **options)
    if not result.interrupted:
        with contextlib.nullcontext() if supervision is None else supervision.phase("export"):
            _sample(job, module, step=steps)
            _export(job, module, out)
    return not result.interrupted


@contextlib.contextmanager
def _typed_advice(out: Path, steps: int) -> Iterator[None]:
    """Ends the message of a bad step with options of the command."""
    from dovetail_train import BadStep

    try:
        yield
    except BadStep as error:
        saved = rewinding.checkpoints(out)
        advice = rewinding.advice(error.skipped, saved, steps=steps)
        error.args = (f"{error.found}; {advice}",)
        raise


@contextlib.contextmanager
def _watched(
    steps: int, supervision: "Supervision | None"
) -> "Iterator[tuple[Callable[[int], bool], list[Sink]]]":
    """Yields the trainer's `stop` and the sinks for progress."""
    if supervision is not None:
        yield supervision.context.stop, [Lines(steps=steps), supervision.context.progress]
        return
    from dovetail_checkpoint import on_signal

    with on_signal(signal.SIGINT, signal.SIGTERM) as stop, Bar(steps=steps) as bar:
        yield stop.poll, [bar]


def _job(run: Settings, out: Path, mesh: "Mesh") -> Job:
    if isinstance(run, FromRecords):
        return record_jobs.job_of(run, out, mesh)
    assert isinstance(run, FromText)
    return text_jobs.job_of(run, out, mesh)


def _sample(job: Job, module: Any, *, step: int) -> None:
    """Samples text at the beginning or the end of a run, if the job asks for it."""
    if job.at_ends is not None:
        job.at_ends.write(module, step)
        job.at_ends.close()


def _export(job: Job, module: Any, out: Path) -> None:
    """Exports the decoder of a trained module. Every process calls it."""
    trained = gathered(module)
    on_first(lambda: job.export(trained, out))


@accepting
def checked(run: S, *, mesh: "Mesh") -> S:
    """Checks the settings of a new run. Writes nothing and reads no weights.

    Args:
        run: Settings of a new run.
        mesh: Devices of the first launch.

    Returns:
        The settings, with the names of files without text and the keys of a config.json.

    Raises:
        ValueError: Text or records, model, shape, batch or mesh do not fit.
    """
    check_batch(run, mesh)
    if isinstance(run, FromText):
        run = text_jobs.with_keys(run)
    recipe = _outlined(run, mesh)  # reads the configuration of the model that it begins from
    recipe.outline()
    recipe.trainer(1)
    if isinstance(run, FromRecords):
        _check_fields(recipe)
        record_jobs.check(run)
        return run
    assert isinstance(run, FromText)
    return text_jobs.checked(run)


def _check_fields(recipe: "Recipe") -> None:
    """Raises ValueError if the fields that the loss needs cannot be made of a batch of its size."""
    from dovetail_stack.recipes.fitting import text_fields

    fields = text_fields(recipe.batching)
    empty: dict[str, Any] = {name: np.zeros(x.shape, x.dtype) for name, x in fields.items()}
    if "pair_ids" in (recipe.fields or {}):
        empty["pair_ids"] = np.arange(recipe.batching.global_batch, dtype=np.int32) // 2
    next(recipe.batches(iter([empty])))


def rehearsed(run: FromRecords, out: Path, *, mesh: "Mesh") -> Job:
    """Returns the job of a run whose corpora are written, and draws its first batch.

    Args:
        run: Settings, from `checked`.
        out: Directory to write to.
        mesh: Devices.

    Raises:
        ValueError: As `execute` would, before its first step.
    """
    from dovetail_data import batches

    job, step = record_jobs.job_of(run, out, mesh), run.training
    next(job.recipe.batches(batches(job.rows, global_batch=step.global_batch, seed=step.seed)))
    return job


def _outlined(run: Settings, mesh: "Mesh | AbstractMesh") -> "Recipe":
    """Returns the recipe before its corpora are read."""
    if isinstance(run, FromRecords):
        return record_jobs.outlined(run, mesh)
    assert isinstance(run, FromText)
    return text_jobs.outlined(run, mesh)


def check_batch(run: Settings, mesh: "Mesh | AbstractMesh") -> None:
    """Raises ValueError unless rows and tokens of a step divide among the devices."""
    sizes, step = dict(mesh.shape), run.training
    ways = math.prod(sizes.get(axis, 1) for axis in ("data", "fsdp", "expert"))
    unit = record_jobs.unit_of(run) if isinstance(run, FromRecords) else 1
    least = step.accumulate * ways * unit
    if step.global_batch % least:
        together = f" of whole examples of {unit} rows" if unit > 1 else ""
        raise ValueError(
            f"the rows of a step must divide among {ways} devices and accumulate={step.accumulate} "
            f"microbatches{together}, got global_batch={step.global_batch}: pass "
            f"global_batch={math.ceil(step.global_batch / least) * least}"
        )
    if step.length % sizes.get("context", 1):
        raise ValueError(
            f"length must divide among context={sizes['context']} devices, got "
            f"length={step.length}: pass length="
            f"{math.ceil(step.length / sizes['context']) * sizes['context']}"
        )


@accepting
def estimate(
    run: Settings, *, mesh: "AbstractMesh", dcn: dict[str, int] | None = None, **rates: float
) -> "Estimate":
    """Estimates memory and time of a step. Writes nothing and reads no weights.

    Args:
        run: Settings.
        mesh: Abstract mesh, with the kind of its devices.
        dcn: Slices along each axis that crosses slow links. Default: one slice.
        **rates: Measured rates of the devices, as `dovetail_train.estimate` takes them.

    Returns:
        The estimate. Its remedies are options of the command.
    """
    from dovetail_stack.recipes.fitting import estimate_step

    check_batch(run, mesh)
    if isinstance(run, FromText):
        run = text_jobs.with_keys(run)
    needs = estimate_step(_outlined(run, mesh), device=None, dcn=dcn, **rates)
    typed = [dataclasses.replace(r, code=_options(r.changes)) for r in needs.remedies]
    return dataclasses.replace(needs, remedies=tuple(typed))


@accepting
def step_program(run: Settings, mesh: "Mesh") -> "Program":
    """Returns the step of a run for a compiler. Writes nothing and reads no weights.

    Args:
        run: Settings.
        mesh: Devices, which may be absent.
    """
    from dovetail_stack.recipes.fitting import step_program

    check_batch(run, mesh)
    if isinstance(run, FromText):
        run = text_jobs.with_keys(run)
    return step_program(_outlined(run, mesh))


def _options(changes: dict[str, Any]) -> str:
    """Returns the options of the command for the changes of a remedy."""
    named = {"compute": "precision", "rows": "global_batch"}
    values = changes | ({"remat": "all"} if "remat" in changes else {})
    return " ".join(f"{option(named.get(name, name))} {value}" for name, value in values.items())


def _plan(run: Settings, recipe: "Recipe", rows: "Rows") -> int:
    """Returns the steps of a new run: one pass over the text, or as many as fit the minutes."""
    from dovetail_stack.recipes.fitting import steps_in

    one_pass = math.ceil(len(rows) * rows.unit / run.training.global_batch)
    if run.duration.minutes is None:
        return one_pass
    say("Timing a few steps to plan the run.")
    fitting = steps_in(60 * run.duration.minutes, recipe, rows)
    steps = min(fitting, MOST_PASSES * one_pass)
    say(
        f"{steps} steps: {steps / one_pass:.2f} passes over the text"
        + ("" if steps == fitting else f" (the time would fit {fitting})")
    )
    return steps


def _evaluations(job: Job, *, mesh: "Mesh", every: int) -> "list[Hook]":
    """Returns hooks for the measures of held-out rows, also of averaged parameters."""
    from dovetail_data import batches
    from dovetail_train import Eval, process_shard

    batching = job.recipe.batching
    size = batching.global_batch
    whole = batches(job.held_out, global_batch=size, seed=None, epochs=1, shard=process_shard(mesh))
    held_out = list(islice(job.recipe.batches(whole), evaluated_batches(size)))
    kinds = (False, True) if batching.ema else (False,)
    return [Eval(held_out, every=every, ema=ema, metrics=job.metrics) for ema in kinds]


def _monitoring(run: Settings, job: Job, out: Path) -> "list[Hook]":
    """Returns the hooks of the job and the one for a trace."""
    from dovetail_train import Trace

    hooks = [*job.hooks]
    if run.monitoring.trace:
        first = run.monitoring.trace
        hooks.append(Trace(out / TRACE, start=first, steps=TRACED_STEPS, processes="all"))
    return hooks
