# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a launch: options that were typed, joined with those stored in the run.

They are checked before anything is written. Every process decides them.
"""

import contextlib
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

import dovetail_models
from dovetail_runs import Run
from dovetail_runs.record import launch, lock
from dovetail_stack import processes, record_jobs, rewinding, settings, text_jobs
from dovetail_stack.recipes.fitting import Recipe, text_fields
from dovetail_stack.recipes.options import CHECKPOINTS, METRICS
from dovetail_stack.settings import RECIPES, FromRecords, FromText, Settings
from dovetail_train import check_shared

# Left by a run that was killed while it wrote its settings, and by file managers.
_HARMLESS = (f"{settings.FILE}.partial", lock.FILE, launch.FILE, ".DS_Store")
_LISTED = 5  # other files in a message


def agreed(values: dict[str, Any], out: Path, mesh: Any) -> Settings:
    """Returns the settings on every process. Process 0 checks and stores those of a new run.

    Args:
        values: Parsed options by name.
        out: Directory of the run.
        mesh: Devices.
    """
    on_first = []
    processes.on_first(lambda: on_first.append(resolved(values, out, mesh)))
    check_shared(out / settings.FILE)
    return on_first[0] if on_first else resolved(values, out, mesh)


def planned(values: dict[str, Any], out: Path) -> Settings:
    """Returns the settings for an estimate: the given ones, or those stored in `out`."""
    if (out / settings.FILE).is_file():
        return settings.load(out)
    if values["recipe"] is None:
        raise ValueError(
            f"an estimate needs a recipe: type dovetail train {'|'.join(RECIPES)} --estimate KIND"
        )
    return settings.new(values)


def resolved(values: dict[str, Any], out: Path, mesh: Any) -> Settings:
    """Returns the settings stored in `out`, or stores those of a new run.

    Some options may differ from a stored run's; it keeps its own until the launch has made a step.
    A run that failed before its first step does not count: a command with other settings replaces
    it.

    Args:
        values: Parsed arguments by name.
        out: Directory of the run.
        mesh: Devices.
    """
    run, replaced = decided(values, out, mesh)
    if replaced:
        print(f"{out} failed before its first step: it begins anew.", file=sys.stderr)
        _clear(out)
    if replaced or not (out / settings.FILE).is_file():
        run.save(out)
    return run


def decided(values: dict[str, Any], out: Path | None, mesh: Any) -> tuple[Settings, bool]:
    """Returns the settings of a launch, and whether they replace those of a run that failed.

    Writes nothing, so that a check refuses all that a run would.

    Args:
        values: Parsed arguments by name.
        out: Directory of the run. None: a new one.
        mesh: Devices.

    Raises:
        ValueError: A setting does not fit, the stored run is another, or `out` has other files.
    """
    recipe: str | None = values["recipe"]
    resumed = out is not None and (out / settings.FILE).is_file()
    if not resumed and ("rewind" in values or "leave_out" in values):
        raise ValueError(
            f"a run must have steps to go back or to leave some out, got no run in {str(out)!r}: "
            "name one by --out, or leave out --rewind and --leave-out"
        )
    if not resumed and recipe is None:
        names = "|".join(RECIPES)
        raise ValueError(
            f"{str(out)!r} holds no run to resume; a new one needs a recipe: type dovetail train "
            f"{names} --out {out} --text DIR"
        )
    if out is None or not resumed:
        if out is not None:
            _check_empty(out)
        return _created(values, mesh), False
    stored = settings.load(out)
    given = settings.given_of(values, type(stored))
    same = recipe == stored.recipe and not settings.differences(given, stored)
    if recipe is not None and not same and _never_trained(out):
        return _created(values, mesh), True
    if recipe not in (None, stored.recipe):
        raise ValueError(
            f"{str(out)!r} holds a run of the recipe {stored.recipe}, got {recipe}: leave the "
            "recipe out to resume it, or start a new run with another --out"
        )
    return _changed(stored, values, out, mesh), False


def _created(values: dict[str, Any], mesh: Any) -> Settings:
    """Returns the settings of a new run, checked. Writes nothing and reads no weights.

    Raises ValueError if text or records, model, shape, batch or mesh do not fit.
    """
    run = settings.new(values)
    with accepting(run):
        check_batch(run, mesh)
        if isinstance(run, FromRecords):
            record_jobs.check_files(run)  # before the model: a wrong name is the commonest mistake
        run = text_jobs.with_keys(run)
        recipe = jobs_of(run).outlined(run, mesh)  # reads the config of the model it begins from
        recipe.outline()
        recipe.trainer(1)
        if isinstance(run, FromRecords):
            _check_fields(recipe)
            record_jobs.check(run)
            return run
        assert isinstance(run, FromText)
        return text_jobs.checked(run)


def _check_empty(out: Path) -> None:
    """Raises ValueError if a new run would share its directory with other files."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"a run needs a directory, got the file {str(out)!r}: pass another --out")
    others = sorted(x.name for x in out.iterdir()) if out.is_dir() else []
    if others := [name for name in others if name not in _HARMLESS]:
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        raise ValueError(
            f"a new run needs a directory of its own, got {str(out)!r} with "
            f"{', '.join(others[:_LISTED])}{more}: pass another --out, such as --out {out / 'run'}"
        )


def _changed(stored: Settings, values: dict[str, Any], out: Path, mesh: Any) -> Settings:
    """Returns the stored settings with the given ones. Raises ValueError for another run's."""
    given = settings.given_of(values, type(stored))
    differing = settings.differences(given, stored)
    if "minutes" in differing:
        raise ValueError(
            f"a run that has begun is extended by steps, got minutes={given['minutes']}: leave "
            f"--minutes out, and pass --steps N, the steps in all"
        )
    if refused := [text for name, text in differing.items() if name not in settings.CHANGEABLE]:
        raise ValueError(
            f"{str(out)!r} holds a run with other settings: {', '.join(refused)}; leave "
            "these options out to resume it, or start a new run with another --out"
        )
    stored = rewinding.requested(stored, values, rewinding.checkpoints(out))
    if not differing:
        return stored
    made = settings.changed(given, stored)
    check_batch(made, mesh)
    changes = settings.changes(stored, made)
    converted = [n for n in settings.CONVERTED if n in changes and 0 in changes[n]]
    if converted and values.get("resume") != "convert":
        raise ValueError(
            f"the state of a run must have the arrays that were saved, got "
            f"{', '.join(differing[name] for name in converted)}: pass --resume convert to keep "
            f"what fits and make the rest, or leave these options out"
        )
    _announce(changes)
    return made


def _announce(changes: dict[str, list[Any]]) -> None:
    texts = [f"{settings.option(n)} {old} is now {new}" for n, (old, new) in changes.items()]
    line = f"The run goes on with changed settings: {', '.join(texts)}."
    if "steps" in changes:
        line += f" Learning rates now follow a schedule over {changes['steps'][1]} steps."
    print(line, file=sys.stderr, flush=True)


def _never_trained(path: Path) -> bool:
    """Tests whether every launch failed before its first step. False while another runs it."""
    run = Run(path)
    ends = [event for event in run.events if event["event"] == "end"]
    if len(ends) < len(run.launches) or any(end["outcome"] != "failed" for end in ends):
        return False
    made = [path / METRICS, *(path / CHECKPOINTS).glob("[0-9]*")]
    return not any(file.exists() for file in made) and not lock.is_locked(path)


def _clear(path: Path) -> None:
    """Removes the corpora, the reference and the tokenizer of a run without steps."""
    for name in ("train", "held_out", "reference"):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink(missing_ok=True)


def accepting(run: Settings) -> contextlib.AbstractContextManager[None]:
    """Opens directories, inside, with what the settings of a run accept."""
    if not any(run.accepted.values()):
        return contextlib.nullcontext()
    return dovetail_models.accepting(**run.accepted)


def _check_fields(recipe: Recipe) -> None:
    """Raises ValueError if the fields that the loss needs cannot be made of a batch of its size."""
    fields = text_fields(recipe.batching)
    empty: dict[str, Any] = {name: np.zeros(x.shape, x.dtype) for name, x in fields.items()}
    if "pair_ids" in (recipe.fields or {}):
        empty["pair_ids"] = np.arange(recipe.batching.global_batch, dtype=np.int32) // 2
    next(recipe.batches(iter([empty])))


def jobs_of(run: Settings) -> Any:
    """Returns the module of the jobs of a recipe."""
    return record_jobs if isinstance(run, FromRecords) else text_jobs


def check_batch(run: Settings, mesh: Mesh | AbstractMesh) -> None:
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
