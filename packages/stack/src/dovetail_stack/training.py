# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the settings of a training run: text, training, export."""

import dataclasses
import math
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dovetail_stack.commands.generate import EXPORT, locate, refuse_quantized
from dovetail_stack.processes import gathered, is_first, on_first, say
from dovetail_stack.progress import Bar, Writing
from dovetail_stack.settings import Continue, Distil, Pretrain, Settings, load, option

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    from dovetail_data import Pretrained, Rows
    from dovetail_models import Config, Decoder
    from dovetail_stack.recipes.fitting import Recipe
    from dovetail_stack.recipes.text import Prepared, Selection
    from dovetail_train import Estimate, Eval, Hook

MOST_PASSES = 4  # over the text, for --minutes: more would train on what is known by heart
EVALUATIONS = 8  # of the held-out loss in a run
EVALUATED_ROWS = 64  # of the held-out text, each time
SAMPLES, TRACE = "samples.jsonl", "trace"
TRACED_STEPS = 5
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Text and recipe of a run, and the directory whose tokenizer is exported."""

    text: "Prepared"
    recipe: "Recipe"
    like: Path


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
    run: Settings, out: Path, *, mesh: "Mesh", resume: Literal["exact", "convert"] = "exact"
) -> bool:
    """Trains a run to its end and exports it, or resumes it. Every process calls it.

    `run.json` follows the first step.

    Args:
        run: Settings.
        out: Directory of the run.
        mesh: Devices.
        resume: See `recipes.fitting.fit`.

    Returns:
        False if a signal stopped the run early. Its state is then saved.
    """
    from dovetail_checkpoint import on_signal
    from dovetail_data import budget, pack
    from dovetail_stack.recipes.fitting import fit
    from dovetail_train.processes import first

    job = _job(run, out, mesh)
    length, seed, size = run.training.length, run.training.seed, run.training.global_batch
    rows = pack(job.text.train, length=length, seed=seed)
    steps = run.duration.steps
    if steps is None:
        steps = first(_plan(run, job.recipe, rows))
        if is_first():
            run.with_steps(steps).save(out)
    say(str(budget(rows, steps=steps, global_batch=size)))
    held_out = pack(job.text.held_out, length=length, seed=seed)
    hooks = [
        *_evaluations(held_out, job, mesh=mesh, every=max(1, steps // EVALUATIONS)),
        *_monitoring(run, job, out),
    ]
    with on_signal(signal.SIGINT, signal.SIGTERM) as stop, Bar(steps=steps) as bar:
        options = {"steps": steps, "hooks": hooks, "stop": stop.poll, "resume": resume}
        options["leave_out"] = [range(first, end) for first, end in run.leave_out]
        model, result = fit(job.recipe, rows, out, sinks=[_Accepted(run, out), bar], **options)
    if not result.interrupted:
        whole = gathered(model)
        on_first(lambda: _export(whole, out, like=job.like))
    return not result.interrupted


def checked(run: S, *, mesh: "Mesh") -> S:
    """Checks the settings of a new run. Writes nothing and reads no weights.

    Args:
        run: Settings of a new run.
        mesh: Devices of the first launch.

    Returns:
        The settings, with the names of files without text and the keys of a config.json.

    Raises:
        ValueError: Text, model, shape, batch or mesh do not fit.
    """
    check_batch(run, mesh)
    run = _with_keys(run)
    recipe = _outlined(run, mesh)  # reads the configuration of the model that it begins from
    recipe.outline()
    recipe.trainer(1)
    selection = _selected(run)
    split_files(run, selection.files)
    if selection.counts:
        print(f"{selection} below {run.files.text}", file=sys.stderr, flush=True)
    return dataclasses.replace(run, skipped=selection.skipped)


def check_batch(run: Settings, mesh: "Mesh | AbstractMesh") -> None:
    """Raises ValueError unless rows and tokens of a step divide among the devices."""
    sizes, step = dict(mesh.shape), run.training
    ways = math.prod(sizes.get(axis, 1) for axis in ("data", "fsdp", "expert"))
    if step.global_batch % (step.accumulate * ways):
        raise ValueError(
            f"the rows of a step must divide among {ways} devices and accumulate={step.accumulate} "
            f"microbatches, got global_batch={step.global_batch}: pass global_batch="
            f"{math.ceil(step.global_batch / (step.accumulate * ways)) * step.accumulate * ways}"
        )
    if step.length % sizes.get("context", 1):
        raise ValueError(
            f"length must divide among context={sizes['context']} devices, got "
            f"length={step.length}: pass length="
            f"{math.ceil(step.length / sizes['context']) * sizes['context']}"
        )


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
    run = _with_keys(run)
    needs = estimate_step(_outlined(run, mesh), device=None, dcn=dcn, **rates)
    typed = [dataclasses.replace(r, code=_options(r.changes)) for r in needs.remedies]
    return dataclasses.replace(needs, remedies=tuple(typed))


def _options(changes: dict[str, Any]) -> str:
    """Returns the options of the command for the changes of a remedy."""
    named = {"compute": "precision", "rows": "global_batch"}
    values = changes | ({"remat": "all"} if "remat" in changes else {})
    return " ".join(f"{option(named.get(name, name))} {value}" for name, value in values.items())


def _outlined(run: Settings, mesh: "Mesh | AbstractMesh") -> "Recipe":
    """Returns the recipe before the text is read. The vocabulary has the requested size."""
    from dovetail_stack.recipes.families import check_experts, config_of

    options = {"length": run.training.length, "keys": run.keys}
    ways = dict(mesh.shape).get("expert", 1)
    if isinstance(run, Continue):
        from dovetail_stack.recipes.continuation import continuation

        source, config, _ = _opened(run)
        check_experts(config, ways=ways)
        return continuation(source, run.training, mesh=mesh)
    if isinstance(run, Distil):
        from dovetail_stack.recipes.distillation import distilling

        teacher, config, _ = _opened(run)
        student = config_of(run.shape, vocab_size=config.vocab_size, **options)
        check_experts(student, ways=ways)
        return distilling(student, teacher, run.distillation, training=run.training, mesh=mesh)
    from dovetail_stack.recipes.language_model import pretraining

    assert isinstance(run, Pretrain)
    config = config_of(run.shape, vocab_size=run.vocabulary.vocab_size, **options)
    check_experts(config, ways=ways)
    return pretraining(config, run.training, mesh=mesh)


def _with_keys(run: S) -> S:
    """Returns the settings of a new run with the keys of its config.json, if there is one."""
    if not isinstance(run, Pretrain | Distil) or run.shape.config is None or run.keys is not None:
        return run
    from dovetail_stack.recipes.families import read_keys

    return dataclasses.replace(run, keys=read_keys(run.shape.config))


def _job(run: Settings, out: Path, mesh: "Mesh") -> _Job:
    if isinstance(run, Continue):
        return _continuing(run, out, mesh)
    if isinstance(run, Distil):
        return _distilling(run, out, mesh)
    assert isinstance(run, Pretrain)
    return _pretraining(run, out, mesh)


def _pretraining(run: Pretrain, out: Path, mesh: "Mesh") -> _Job:
    from dovetail_stack.recipes.families import config_for
    from dovetail_stack.recipes.language_model import pretraining
    from dovetail_stack.recipes.text import prepare

    text = _prepared(run, prepare, out, vocab_size=run.vocabulary.vocab_size)
    options = {"length": run.training.length, "keys": run.keys}
    config = config_for(run.shape, text.tokenizer, **options)
    return _Job(text=text, recipe=pretraining(config, run.training, mesh=mesh), like=out)


def _continuing(run: Continue, out: Path, mesh: "Mesh") -> _Job:
    from dovetail_stack.recipes.continuation import continuation
    from dovetail_stack.recipes.text import encode

    source, _, tokenizer = _opened(run)
    text = _prepared(run, encode, out, tokenizer=tokenizer)
    return _Job(text=text, recipe=continuation(source, run.training, mesh=mesh), like=source)


def _distilling(run: Distil, out: Path, mesh: "Mesh") -> _Job:
    from dovetail_stack.recipes.distillation import distilling
    from dovetail_stack.recipes.families import config_for
    from dovetail_stack.recipes.text import encode

    teacher, config, tokenizer = _opened(run)
    text = _prepared(run, encode, out, tokenizer=tokenizer)
    options = {"length": run.training.length, "keys": run.keys}
    student = config_for(run.shape, tokenizer, vocab_size=config.vocab_size, **options)
    recipe = distilling(student, teacher, run.distillation, training=run.training, mesh=mesh)
    return _Job(text=text, recipe=recipe, like=teacher)


def _opened(run: Continue | Distil) -> "tuple[Path, Config, Pretrained]":
    """The directory of the model that the run begins from, its configuration and its tokenizer."""
    from dovetail_stack.recipes.continuation import opened

    named = run.source.model if isinstance(run, Continue) else run.distillation.teacher
    refuse_quantized(Path(named), run.recipe)
    directory = locate(Path(named))
    return directory, *opened(directory, length=run.training.length)


def _selected(run: Settings) -> "Selection":
    """Selects the files of a run. Only a new run reads all of them."""
    from dovetail_stack.recipes.text import select

    files = run.files
    options = {"pattern": files.pattern, "skip": files.skip, "skipped": run.skipped}
    return select(Path(files.text), **options)


def split_files(run: Settings, files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the files to train on and the held-out files."""
    from dovetail_stack.recipes.text import split

    return split(files, root=Path(run.files.text), held_out=run.files.held_out)


def _prepared(run: Settings, write: Any, out: Path, **options: Any) -> "Prepared":
    """Writes both corpora with `prepare` or `encode` on process 0. The others open them."""
    from dovetail_stack.recipes.text import opened

    prepared = []
    on_first(lambda: prepared.append(_written(run, write, out, **options)))
    return prepared[0] if prepared else opened(out, tokenizer=options.get("tokenizer"))


def _written(run: Settings, write: Any, out: Path, **options: Any) -> "Prepared":
    train, held_out = split_files(run, _selected(run).files)
    counts = f"{len(train)} files to train on, {len(held_out)} held out"
    print(f"{counts}, from {run.files.text}", file=sys.stderr, flush=True)
    with Writing() as writing:
        workers = os.cpu_count() or 1
        try:
            return write(train, held_out, out, workers=workers, progress=writing, **options)
        except ValueError as error:
            error.add_note(
                f"The files were chosen by --pattern {run.files.pattern!r} without --skip "
                f"{run.files.skip}; for others, type the command anew with other options."
            )
            raise


def _plan(run: Settings, recipe: "Recipe", rows: "Rows") -> int:
    """Returns the steps of a new run: one pass over the text, or as many as fit the minutes."""
    from dovetail_stack.recipes.fitting import steps_in

    one_pass = math.ceil(len(rows) / run.training.global_batch)
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


def _evaluations(rows: "Rows", job: _Job, *, mesh: "Mesh", every: int) -> "list[Eval]":
    """Returns hooks for held-out loss and bits per byte, also of averaged parameters."""
    from dovetail_data import batches
    from dovetail_stack.recipes.fitting import attention
    from dovetail_train import Eval, lm_loss, process_shard

    batching = job.recipe.batching
    size = batching.global_batch
    metrics = {"loss": lm_loss(attention=attention), **_bits_per_byte(job.text.tokenizer)}

    def of_decoder(loss: Any) -> Any:
        return lambda model, batch, *, key: loss(job.recipe.decoder(model), batch, key=key)

    held_out = list(
        islice(
            batches(rows, global_batch=size, seed=None, epochs=1, shard=process_shard(mesh)),
            math.ceil(EVALUATED_ROWS / size),
        )
    )
    options = {"metrics": {name: of_decoder(loss) for name, loss in metrics.items()}}
    kinds = (False, True) if batching.ema else (False,)
    return [Eval(held_out, every=every, ema=ema, **options) for ema in kinds]


def _monitoring(run: Settings, job: _Job, out: Path) -> "list[Hook]":
    """Returns the hooks for samples and a trace."""
    from dovetail_stack.recipes.sampling import Samples
    from dovetail_train import Trace

    monitoring, hooks = run.monitoring, []
    if monitoring.samples:
        options = {"prompt": monitoring.prompt, "every": monitoring.samples}
        decoder = job.recipe.decoder
        hooks.append(Samples(out / SAMPLES, job.text.tokenizer, decoder=decoder, **options))
    if monitoring.trace:
        hooks.append(Trace(out / TRACE, start=monitoring.trace, steps=TRACED_STEPS))
    return hooks


def _bits_per_byte(tokenizer: "Pretrained") -> dict[str, Any]:
    """Returns the metric, or nothing if the tokenizer does not tell the bytes of an id."""
    from dovetail_data import token_bytes
    from dovetail_stack.recipes.fitting import attention
    from dovetail_train import BitsPerByte

    try:
        sizes = token_bytes(tokenizer)
    except ValueError as error:
        say(f"Bits per byte will not be measured: {error}")
        return {}
    return {"bits_per_byte": BitsPerByte(sizes, attention=attention)}


def _export(model: "Decoder", out: Path, *, like: Path) -> None:
    """Writes `out`/hf with the tokenizer. Replaces an earlier export of this run."""
    from dovetail_models import save

    if (out / EXPORT).exists():
        shutil.rmtree(out / EXPORT)
    save(model, out / EXPORT, like=like)
