# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One launch of a run: its settings, its record and its training. Every process calls it.

The settings are the options that were typed, joined with those stored in the run.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail_stack import launches, processes, rewinding, runs, settings, training
from dovetail_stack.settings import RECIPES, Settings

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dovetail_stack.supervision import Supervision

# Left by a run that was killed while it wrote its settings, and by file managers.
_HARMLESS = (f"{settings.FILE}.partial", launches.LOCK, launches.FILE, ".DS_Store")
_LISTED = 5  # other files in a message


def launch(
    values: dict[str, Any],
    out: Path,
    *,
    mesh: "Mesh",
    command: Sequence[str],
    changes: Mapping[str, Sequence[Any]] | None = None,
    supervision: "Supervision | None" = None,
) -> bool:
    """Trains a run to its end, or resumes it, and records the launch.

    Args:
        values: Parsed options by name.
        out: Directory of the run.
        mesh: Devices.
        command: Arguments of the command `dovetail`.
        changes: Settings that were changed before, for the record.
        supervision: See `training.execute`. The lock of the run is then held already.

    Returns:
        False if it was stopped early. Its state is then saved.
    """
    run = agreed(values, out, mesh)
    record = launches.Record()
    with contextlib.ExitStack() as stack:
        options = {"command": command, "seeds": {"seed": run.training.seed}, "mesh": mesh}
        if supervision is not None:
            options["generation"] = supervision.context.generation
        entered = []

        def begin() -> None:
            before = settings.load(out)
            changed = {**settings.changes(before, run), **(changes or {})}
            if run.rewind is not None:
                changed |= rewinding.changes(before, run, rewinding.checkpoints(out))
            entered.append(stack.enter_context(launches.recorded(out, changes=changed, **options)))

        processes.on_first(begin)
        record = entered[0] if entered else record
        made = rewinding.completed(run, out) if run.rewind is not None else run
        mode = values.get("resume", "exact")
        record.finished = training.execute(
            made, out, mesh=mesh, resume=mode, supervision=supervision
        )
    return record.finished


def agreed(values: dict[str, Any], out: Path, mesh: Any) -> Settings:
    """Returns the settings on every process. Process 0 checks and stores those of a new run.

    Args:
        values: Parsed options by name.
        out: Directory of the run.
        mesh: Devices.
    """
    on_first = []
    processes.on_first(lambda: on_first.append(resolved(values, out, mesh)))
    processes.check_shared(out / settings.FILE)
    return on_first[0] if on_first else resolved(values, out, mesh)


def planned(values: dict[str, Any], out: Path) -> Settings:
    """Returns the settings for an estimate: the given ones, or those stored in `out`."""
    if (out / settings.FILE).is_file():
        return settings.load(out)
    if values["recipe"] is None:
        raise ValueError(
            f"an estimate needs a recipe: type dovetail train {'|'.join(RECIPES)} --estimate KIND"
        )
    kind = RECIPES[values["recipe"]]
    return settings.create(kind, given_of(values, kind))


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
        runs.clear(out)
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
    if recipe is not None and runs.never_trained(out) and not _same(values, out):
        return _created(values, mesh), True
    stored = settings.load(out)
    if recipe not in (None, stored.recipe):
        raise ValueError(
            f"{str(out)!r} holds a run of the recipe {stored.recipe}, got {recipe}: leave the "
            "recipe out to resume it, or start a new run with another --out"
        )
    return _changed(stored, values, out, mesh), False


def _created(values: dict[str, Any], mesh: Any) -> Settings:
    kind = RECIPES[values["recipe"]]
    return training.checked(settings.create(kind, given_of(values, kind)), mesh=mesh)


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
    given = given_of(values, type(stored))
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
    training.check_batch(made, mesh)
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


def _same(values: dict[str, Any], out: Path) -> bool:
    """Tests whether the command asks for the run in `out`."""
    stored = settings.load(out)
    given = given_of(values, type(stored))
    return values["recipe"] == stored.recipe and not settings.differences(given, stored)


def given_of(values: dict[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Returns the given options of a recipe, in the types of its settings."""
    names = [
        item.name for group in settings.parts(kind).values() for item in dataclasses.fields(group)
    ]
    selected = {name: values[name] for name in names if name in values}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in selected.items()}
