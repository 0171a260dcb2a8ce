# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Train a model: from nothing, from another, from a teacher, or on records.

The same command again, or just --out, resumes a run that was interrupted or killed. With --out
and more --steps a run goes on, a finished one too. A finished run is exported as a Hugging Face
directory, RUN/hf. Without --steps or --minutes a run is one pass over the text. Commands, versions
and metrics are kept with the run: see dovetail runs. --settings FILE holds any options of a recipe.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from dovetail_runs.settings import arguments, help_of
from dovetail_stack import launch_options, processes, settings, settings_file
from dovetail_stack._command import DONE, INTERRUPTED, add_json
from dovetail_stack.launch_options import (
    HOSTS,
    RATES,
    STALL_S,
    Check,
    Hosts,
    Processes,
    Rates,
    Resuming,
)
from dovetail_stack.model_directory import EXPORT
from dovetail_stack.parsing import Parser
from dovetail_stack.recipes.options import Devices, Duration, check_local
from dovetail_stack.settings import RECIPES, FromRecords

LATE = ("monitoring",)  # groups at the end of a help
HIDDEN = {"devices": (Devices, Processes, Rates), "many hosts": (Hosts,)}  # in --help-all alone
WRITERS = ("pretrain", "continue", "distil", "chat", "prefer")  # recipes of models that write text


def add(parser: Parser) -> None:
    """Declares the recipes. Options have no defaults here, so a resumed run keeps its own."""
    parser.argument_default = argparse.SUPPRESS
    _add_out(parser)
    _everywhere(parser)
    _options(parser, Resuming)
    recipes = parser.add_subparsers(
        dest="recipe", title="recipes, each with options of its own", metavar="RECIPE"
    )
    for name, kind in RECIPES.items():
        recipe = recipes.add_parser(
            name,
            aliases=settings.ALIASES.get(name, ()),
            help=(kind.__doc__ or "").splitlines()[0],
            description=(inspect.getdoc(kind) or "").partition("\n\nArgs:")[0],
            argument_default=argparse.SUPPRESS,
        )
        recipe.set_defaults(recipe=name)  # the alias that was typed is forgotten
        parts = settings.parts(kind)
        for title in sorted(parts, key=LATE.__contains__):
            group = recipe.add_argument_group(title)
            _options(group, parts[title])
            if title == next(iter(parts)):
                _add_out(group)
        _everywhere(recipe)
        if issubclass(kind, FromRecords):
            _options(recipe, Check)
        fields = settings.fields_of(kind).items()
        needed = [settings.option(n) for n, f in fields if f.default is dataclasses.MISSING]
        recipe.needed = [*needed, "--out"]
        recipe.at_end = True
    parser.usage = f"{parser.prog} RECIPE [options], or {parser.prog} --out RUN to resume"


def _add_out(group: Any) -> None:
    group.add_argument("--out", type=Path, metavar="RUN", help="the run's directory (needed)")


def _everywhere(parser: Parser) -> None:
    """Declares the options of a launch, whose groups --help-all shows."""
    _options(parser, launch_options.Settings)
    for title, kinds in HIDDEN.items():
        group = parser.add_argument_group(title, "may differ when a run is resumed")
        parser.hide(group)
        for kind in kinds:
            _options(group, kind)
    parser.words |= {rate: settings.option(rate) for rate in RATES}
    parser.words |= {"timeout_s": "--compile", "device": "--estimate", "now": "--date"}
    parser.words["options_text"] = "--print-settings"
    add_json(parser)


def _options(group: Any, part: Any) -> None:
    """Declares an option for each field of a group, with its help and default."""
    if part is Duration:
        group = group.add_mutually_exclusive_group()
    for item in dataclasses.fields(part):
        help = help_of(item).replace("%", "%%")
        group.add_argument(settings.option(item.name), help=help, **arguments(item, item.type))


def run(args: argparse.Namespace) -> int:
    """Prepares the text, trains and exports. Returns 130 if the run was stopped early."""
    values = _with_file(vars(args))
    on_hosts = _on_hosts(values)
    if "print_settings" in values:
        print(_printed(values))
        return DONE
    if "out" not in values and "check" not in values:
        args.parser.error("the following arguments are required: --out RUN, the run's directory")
    check_local("out", values.get("out", ""))
    out = args.out.resolve() if "out" in values else None
    if out is not None and (out / "config.json").is_file():
        raise ValueError(
            f"a run needs a directory of its own, got {str(out)!r} with a model's config.json: "
            f"pass another --out; to train that model, dovetail train continue --model {args.out}"
        )
    # Below the help and these refusals: all of them import JAX.
    from dovetail_stack.checking import checked
    from dovetail_stack.estimating import report
    from dovetail_stack.many_hosts import drive
    from dovetail_stack.processes import make_mesh, parsed_dcn
    from dovetail_stack.training import launch

    axes = settings.axes_of(values)
    dcn = parsed_dcn(args.dcn, axes) if "dcn" in values else None
    if "check" in values:
        print(checked(values, out, mesh=make_mesh(axes, dcn=dcn)))
        return DONE
    assert out is not None
    rates = _rates(values)
    if on_hosts:
        with _stdout_for_json(values):
            finished = drive({**values, "dcn": dcn}, out, command=args.argv)
        return _reported(args, out, finished=finished)
    with processes.joined(values):
        if "estimate" in values:
            print(report(values, out, axes, dcn=dcn, rates=rates))
            return DONE
        mesh = make_mesh(axes, dcn=dcn)
        with _stdout_for_json(values):
            finished = launch(values, out, mesh=mesh, command=args.argv)
        return _reported(args, out, finished=finished)


def _on_hosts(values: dict[str, Any]) -> bool:
    """Tests whether the command asks for many hosts. Raises ValueError for a contradiction."""
    given = [name for name in HOSTS if name in values]
    if not given:
        return False
    shown = settings.option(given[0])
    for name in ("coordinator", "processes", "process", "estimate", "check", "print_settings"):
        if name in values:
            raise ValueError(
                f"a job on many hosts must be one command that trains, got {shown} and "
                f"{settings.option(name)}: leave out one of them"
            )
    if not {"hosts", "ray", "slurm"} & set(given):
        raise ValueError(f"{shown} must come with hosts, got none: add --hosts N")
    if "slurm" in values and ("ray" in values or "hosts" in values):
        other = "ray" if "ray" in values else "hosts"
        raise ValueError(
            f"the hosts of --slurm must be those of its allocation, got {settings.option(other)} "
            f"too: leave it out"
        )
    for name in ("hosts", "fewest_hosts"):
        if values.get(name, 1) < 1:
            raise ValueError(f"{name} must be at least 1, got {name}={values[name]}: pass 2")
    if not values.get("stall", STALL_S) > 0:
        raise ValueError(
            f"stall must be a number of seconds above 0, got stall={values['stall']}: pass "
            f"--stall {STALL_S:g}"
        )
    return True


def _rates(values: dict[str, Any]) -> dict[str, float]:
    """Returns the given rates of devices. Raises ValueError for them without an estimate."""
    rates = {rate: values[rate] for rate in RATES if rate in values}
    if "estimate" not in values and (rates or "compile" in values):
        given = [f"{settings.option(rate)} {value:g}" for rate, value in rates.items()]
        raise ValueError(
            f"rates of devices and --compile are for an estimate, got "
            f"{' '.join(given) or '--compile'} without one: add --estimate KIND"
        )
    return rates


def _with_file(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with those of --settings, for the recipe typed, named or stored."""
    if "settings" not in values:
        return values
    file = Path(values["settings"])
    recipe = values["recipe"] or settings_file.recipe_of(file)
    stored = recipe is None and "out" in values and (values["out"] / settings.FILE).is_file()
    if recipe is None and not stored:
        raise ValueError(
            f"settings belong to a recipe, got none with {str(file)!r}: type dovetail train "
            f"{'|'.join(RECIPES)} --settings {file}"
        )
    kind = type(settings.load(values["out"])) if recipe is None else RECIPES[recipe]
    return {**settings_file.merged(file, kind, values), "recipe": recipe}


def _printed(values: dict[str, Any]) -> str:
    """Returns the settings file of a recipe, or of the run in --out."""
    recipe = values["recipe"]
    if recipe is None and "out" not in values:
        raise ValueError(
            f"settings belong to a recipe, got none: type dovetail train {'|'.join(RECIPES)} "
            "--print-settings, or --out RUN for those of a run"
        )
    given: dict[str, Any] = {}
    if recipe is None:
        stored = settings.load(values["out"])
        kind, given = type(stored), settings.flat(stored)
        if given["steps"] is not None:
            del given["minutes"]  # they have become steps
    else:
        kind = RECIPES[recipe]
    given |= settings.given_of(values, kind)
    given |= {axis: values[axis] for axis in settings.AXES if axis in values}
    if "json" in values:
        return json.dumps(settings_file.values_of(kind, given), indent=2)
    return settings_file.written(kind, given).rstrip("\n")


def _stdout_for_json(values: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Keeps standard output for the one object of --json."""
    as_json = "json" in values
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _reported(args: argparse.Namespace, out: Path, *, finished: bool) -> int:
    """Prints the end of a launch, on process 0. Returns the exit code."""
    if not processes.is_first():
        return DONE if finished else INTERRUPTED
    export = str(out / EXPORT) if finished else None
    if "json" in args:
        print(json.dumps({"run": str(out), "finished": finished, "export": export}, indent=2))
    elif finished:
        writes = settings.load(out).recipe in WRITERS
        hint = f" Try: dovetail generate {args.out} --prompt '...'" if writes else ""
        print(f"Exported {export}.{hint}")
    if finished:
        return DONE
    print(f"Saved. Resume it with: dovetail train --out {args.out}", file=sys.stderr)
    return INTERRUPTED
