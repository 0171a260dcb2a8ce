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

from dovetail_runs.settings.options import arguments
from dovetail_stack import (
    checking,
    estimating,
    launch_settings,
    many_hosts,
    processes,
    settings,
    settings_file,
    training,
)
from dovetail_stack._command import DONE, INTERRUPTED, add_json
from dovetail_stack.mesh import axes_of, make_mesh, parsed_dcn
from dovetail_stack.model_directory import EXPORT
from dovetail_stack.parsing import Parser
from dovetail_stack.recipes.fields import check_local, help_of
from dovetail_stack.recipes.options import Devices, Duration
from dovetail_stack.settings import RECIPES, FromRecords

LATE = ("monitoring",)  # groups at the end of a help
WRITERS = ("pretrain", "continue", "distil", "chat", "prefer")  # recipes of models that write text


def add(parser: Parser) -> None:
    """Declares the recipes. Options have no defaults here, so a resumed run keeps its own."""
    parser.argument_default = argparse.SUPPRESS
    _add_out(parser)
    _everywhere(parser)
    parser.add_argument("--steps", type=int, metavar="N", help="steps in all, of a stored run")
    parser.add_argument(
        "--rewind",
        type=int,
        metavar="STEP",
        help="go back to the newest checkpoint of a stored run at or before STEP; later ones are "
        "set aside",
    )
    parser.add_argument(
        "--leave-out",
        nargs="+",
        metavar="A:B",
        help="pass over the batches of steps A to B - 1, such as those of a loss spike; all other "
        "rows keep their order",
    )
    recipes = parser.add_subparsers(
        dest="recipe", title="recipes, each with options of its own", metavar="RECIPE"
    )
    for name, kind in RECIPES.items():
        recipe = recipes.add_parser(
            name,
            aliases=settings.ALIASES.get(name, ()),
            help=(kind.__doc__ or "").splitlines()[0],
            description=inspect.getdoc(kind),
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
            _checks(recipe)
        fields = settings.fields_of(kind).items()
        needed = [settings.option(n) for n, f in fields if f.default is dataclasses.MISSING]
        recipe.needed = [*needed, "--out"]
        recipe.at_end = True
    parser.usage = f"{parser.prog} RECIPE [options], or {parser.prog} --out RUN to resume"


def _checks(parser: Parser) -> None:
    """Declares the options of a check."""
    help = f"print totals and {settings.CHECKED_ROWS} rows as the model sees them, colored by what "
    help += "is trained, and start nothing"
    parser.add_argument("--check", action="store_true", help=help)
    help = "colors of --check, also where no terminal is"
    parser.add_argument("--color", action="store_true", help=help)


def _add_out(group: Any) -> None:
    group.add_argument("--out", type=Path, metavar="RUN", help="the run's directory (needed)")


def _everywhere(parser: Parser) -> None:
    parser.add_argument(
        "--resume",
        choices=("exact", "convert"),
        help="convert: add or drop averages or the guard of a stored run (exact)",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="TOML file of options, in sections like those here; typed options replace them",
    )
    parser.add_argument(
        "--print-settings",
        action="store_true",
        help="print such a file with all options, and start nothing",
    )
    devices = parser.add_argument_group("devices", "may differ when a run is resumed")
    parser.hide(devices)
    _options(devices, Devices)
    devices.add_argument(
        "--dcn",
        metavar="AXIS=N",
        help="axis that crosses the slow links between N slices or processes, such as data=2 "
        "(data, over all slices)",
    )
    devices.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="train on several processes: the address of process 0, or auto on a cluster that JAX "
        "detects; type the same command for each process",
    )
    devices.add_argument("--processes", type=int, metavar="N", help="number of the processes")
    devices.add_argument("--process", type=int, metavar="I", help="this process, from 0 on")
    devices.add_argument(
        "--estimate",
        metavar="KIND",
        help="say what a step needs on so many devices of a kind, absent or not, such as H200 or "
        "'TPU v5e:16x16', and start nothing",
    )
    devices.add_argument(
        "--compile",
        type=float,
        nargs="?",
        const=estimating.COMPILE_S,
        metavar="SECONDS",
        help=f"for --estimate: compile the step for them, too, within SECONDS "
        f"({estimating.COMPILE_S:g}); for TPUs this needs dovetail-cluster[tpu-plan]",
    )
    parser.words["timeout_s"] = "--compile"
    for rate, help in estimating.RATES.items():
        devices.add_argument(settings.option(rate), type=float, metavar="RATE", help=help)
        parser.words[rate] = settings.option(rate)
    parser.words["device"] = "--estimate"
    parser.words["now"] = "--date"
    _many_hosts(parser)
    add_json(parser)


def _many_hosts(parser: Parser) -> None:
    group = parser.add_argument_group("many hosts", "may differ when a run is resumed")
    parser.hide(group)
    group.add_argument(
        "--hosts",
        type=int,
        metavar="N",
        help="train on N hosts as one program that survives failures: processes of this machine "
        "with a CPU device each, or nodes of --ray",
    )
    group.add_argument(
        "--fewest-hosts",
        type=int,
        metavar="M",
        help="go on with as few as M hosts while others are lost (all of them)",
    )
    group.add_argument(
        "--stall",
        type=float,
        metavar="SECONDS",
        help=f"restart if no step is completed for so long ({many_hosts.STALL_S:g}); the first "
        f"step, an evaluation or the export may take {many_hosts.LONG} times as long",
    )
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="hosts are nodes of the Ray cluster at HOST:PORT, or auto for the one that runs here: "
        "N of them, or all; needs dovetail-stack[ray]",
    )
    group.add_argument(
        "--slurm",
        action="store_true",
        help="hosts are all nodes of the Slurm allocation in which this command runs",
    )


def _options(group: Any, part: Any) -> None:
    """Adds an option for each field of a group, with its help and default."""
    if part is Duration:
        group = group.add_mutually_exclusive_group()
    for item in dataclasses.fields(part):
        help = help_of(item).replace("%", "%%")
        group.add_argument(settings.option(item.name), help=help, **arguments(item, item.type))


def run(args: argparse.Namespace) -> int:
    """Prepares the text, trains and exports. Returns 130 if the run was stopped early."""
    values = _with_file(vars(args))
    on_hosts = bool(set(many_hosts.OPTIONS) & set(values)) and many_hosts.is_asked(values)
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
    axes = axes_of(values)
    dcn = parsed_dcn(args.dcn, axes) if "dcn" in values else None
    if "check" in values:
        mesh = make_mesh(axes, dcn=dcn)
        run, _ = launch_settings.decided(values, out, mesh)
        assert isinstance(run, FromRecords)  # the others do not have the option
        print(checking.checked(run, values, mesh=mesh))
        return DONE
    assert out is not None
    of_estimate = {"compile", *estimating.RATES} & set(values)
    rates = estimating.given_rates(values) if of_estimate else {}
    if on_hosts:
        return _drive(args, values | ({} if dcn is None else {"dcn": dcn}), out)
    joined = processes.join(values)
    if "estimate" in values:
        shown = {"compile_s": values.get("compile"), "as_json": "json" in values}
        planned = launch_settings.planned(values, out)
        print(estimating.report(planned, args.estimate, axes, dcn=dcn, rates=rates, **shown))
        return DONE
    with contextlib.ExitStack() as stack:
        if joined:
            from dovetail_train import watch_processes

            stack.enter_context(watch_processes())
        mesh = make_mesh(axes, dcn=dcn)
        with _stdout_for_json(values):
            finished = training.launch(values, out, mesh=mesh, command=args.argv)
        if processes.is_first():
            _report(args, out, as_json="json" in values, finished=finished)
    return DONE if finished else INTERRUPTED


def _with_file(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with those of --settings, for the recipe typed, named or stored."""
    if "settings" not in values:
        return values
    file: Path = values["settings"]
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
    given |= launch_settings.given_of(values, kind) | {
        k: values[k] for k in settings.AXES if k in values
    }
    if "json" in values:
        shown = {"recipe": kind.recipe, **settings_file.values_of(kind, given)}
        return json.dumps(shown, indent=2)
    return settings_file.written(kind, given).rstrip("\n")


def _drive(args: argparse.Namespace, values: dict[str, Any], out: Path) -> int:
    with _stdout_for_json(values):
        finished = many_hosts.drive(values, out, command=args.argv)
    _report(args, out, as_json="json" in values, finished=finished)
    return DONE if finished else INTERRUPTED


def _stdout_for_json(values: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Keeps standard output for the one object of --json."""
    as_json = "json" in values
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _report(args: argparse.Namespace, out: Path, *, as_json: bool, finished: bool) -> None:
    """Prints the end of a launch."""
    export = str(out / EXPORT) if finished else None
    if as_json:
        print(json.dumps({"run": str(out), "finished": finished, "export": export}, indent=2))
    elif finished:
        writes = settings.load(out).recipe in WRITERS
        hint = f" Try: dovetail generate {args.out} --prompt '...'" if writes else ""
        print(f"Exported {export}.{hint}")
    if not finished:
        print(f"Saved. Resume it with: dovetail train --out {args.out}", file=sys.stderr)
