# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One step of the accelerator session: its declaration, and the process that runs it.

A package declares its steps as `STEPS` in packages/NAME/benchmarks/accelerator.py. That file is
read to list them, so it imports nothing but `Step`. The function of a step takes its sizes as
keywords. It prints one JSON line per figure (`measure.report`), or returns an iterator of
`device_timing.Contest`. A line with `passed` and `failed` counts cases of a conformance suite.
"""

import argparse
import dataclasses
import faulthandler
import importlib
import importlib.util
import json
import runpy
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workspace import ROOT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the session that runs in a process of its own.

    Args:
        name: Unique in its package.
        run: "module:function" in the folder of the declaring file.
        order: Rank over all packages; the lowest runs first, after the steps without times.
        limit_s: Seconds after which the step is stopped.
        full: Keywords of the function on an accelerator.
        tiny: Keywords on a CPU, or with --tiny.
        proves: Capabilities that a full run proves, as the markers of the package name them.
        timed: True if its figures are times. Other steps may run beside each other.
    """

    name: str
    run: str
    order: int
    limit_s: float
    full: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tiny: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    proves: tuple[str, ...] = ()
    timed: bool = True


def catalog() -> dict[str, Step]:
    """Returns the steps of all packages by "package.step", in the order in which they run."""
    steps = {}
    for file in sorted(ROOT.glob("packages/*/benchmarks/accelerator.py")):
        package = file.parent.parent.name
        for step in runpy.run_path(str(file))["STEPS"]:
            steps[f"{package}.{step.name}"] = step
    return dict(sorted(steps.items(), key=lambda item: (item[1].timed, item[1].order)))


def sources() -> list[str]:
    """Returns the folders for the PYTHONPATH of a step: modules, and the versions of packages."""
    folders = (ROOT / "scripts", *sorted(ROOT.glob("packages/*/src")), _metadata())
    return list(map(str, folders))


def _metadata() -> Path:
    """A folder with the version of each package, which an installation would have."""
    folder = ROOT / "build" / "accelerator"
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        name, version = project["name"], project["version"]
        metadata = folder / f"{name.replace('-', '_')}.dist-info" / "METADATA"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if not metadata.is_file() or metadata.read_text() != text:
            metadata.parent.mkdir(parents=True, exist_ok=True)
            metadata.write_text(text)
    return folder


def load(name: str) -> tuple[Step, Callable[..., Any]]:
    """Returns a step and its function, and makes the benchmarks of its package importable."""
    step = catalog()[name]
    sys.path.append(str(ROOT / "packages" / name.split(".")[0] / "benchmarks"))
    module, function = step.run.split(":")
    return step, getattr(importlib.import_module(module), function)


def _run(name: str, *, tiny: bool) -> bool:
    """Runs a step; False if a contest failed."""
    step, function = load(name)
    contests = function(**(step.tiny if tiny else step.full))
    passed = True
    for contest in contests if isinstance(contests, Iterator) else ():
        try:
            contest.measure()
        except Exception:  # the next one is measured all the same
            print(f"failed: {contest.case}", file=sys.stderr)
            traceback.print_exc()
            passed = False
    return passed


def main() -> int:
    """Runs the step named on the command line; 1 if it failed."""
    parser = argparse.ArgumentParser(description="Run one step of scripts/accelerator.")
    parser.add_argument("name", metavar="PACKAGE.STEP")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--until", type=float, required=True, help="end by time.monotonic()")
    args = parser.parse_args()
    # Works inside of a hung call too, shows where it hangs, and ends a step without a parent.
    faulthandler.dump_traceback_later(max(args.until - time.monotonic(), 0.001), exit=True)
    # The command of the lines that measure.report prints.
    sys.argv = [str(ROOT / "scripts" / "accelerator"), args.name, *["--tiny"] * args.tiny]
    try:
        return 0 if _run(args.name, tiny=args.tiny) else 1
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if not top or importlib.util.find_spec(top):
            raise  # a module is missing inside of something that is installed
        print(json.dumps({"missing": top.replace("_", "-")}), flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main())
