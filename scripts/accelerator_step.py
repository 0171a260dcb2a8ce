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
import os
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MISSING = 77  # exit code of a step that lacks a module, as of a skipped test in automake


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the session that runs in a process of its own.

    Args:
        name: Unique in its package.
        run: "module:function" in the folder of the declaring file.
        order: Steps run by this number over all packages, the lowest first, after those that are
            not timed.
        limit_s: Seconds after which the step is stopped.
        needs: Modules to import beside the package itself.
        full: Keywords of the function on an accelerator.
        tiny: Keywords on a CPU, or with --tiny.
        proves: Capabilities that a full run proves, as the markers of the package name them.
        timed: Whether its figures are times. Steps that are not may run beside each other.
    """

    name: str
    run: str
    order: int
    limit_s: float
    needs: tuple[str, ...] = ()
    full: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tiny: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    proves: tuple[str, ...] = ()
    timed: bool = True


def catalog() -> dict[str, Step]:
    """The steps of all packages by "package.step", in the order in which they run."""
    steps = {}
    for file in sorted(ROOT.glob("packages/*/benchmarks/accelerator.py")):
        package = file.parent.parent.name
        for step in _load(file, f"{package}_accelerator").STEPS:
            steps[f"{package}.{step.name}"] = step
    return dict(sorted(steps.items(), key=lambda item: (item[1].timed, item[1].order)))


def sources() -> list[str]:
    """The folders of modules that a step imports, and of their metadata, for PYTHONPATH."""
    folders = (ROOT / "scripts", *sorted(ROOT.glob("packages/*/src")), _metadata())
    return list(map(str, folders))


def _metadata() -> Path:
    """A folder with the version of each package, and its entry points, as an installation has."""
    folder = ROOT / "build" / "accelerator"
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        name, version = project["name"], project["version"]
        info = folder / f"{name.replace('-', '_')}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        points = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in project.get("entry-points", {}).items()
        ]
        for part, text in {"METADATA": metadata, "entry_points.txt": "\n".join(points)}.items():
            partial = info / f"{part}.{os.getpid()}"  # whole: another session may be reading
            partial.write_text(text)
            partial.replace(info / part)
    return folder


def load(name: str) -> tuple[Step, Callable[..., Any]]:
    """A step and its function. The benchmarks folder of its package is importable from here on."""
    step = catalog()[name]
    folder = ROOT / "packages" / name.split(".")[0] / "benchmarks"
    sys.path.append(str(folder))
    module, function = step.run.split(":")
    return step, getattr(_load(folder / f"{module}.py", module), function)


def missing(name: str) -> str | None:
    """The distribution without which a step's modules cannot be imported; None if they can."""
    source = ROOT / "packages" / name.split(".")[0] / "src"
    own = [file.parent.name for file in source.glob("*/__init__.py")]
    for module in (*own, *catalog()[name].needs):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            top = (error.name or "").split(".")[0]
            if not top or importlib.util.find_spec(top):
                raise  # a module is missing inside of something that is installed
            return top.replace("_", "-")
    return None


def _load(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Runs the step named on the command line; 0, 1 if it failed, or MISSING."""
    parser = argparse.ArgumentParser(description="Run one step of scripts/accelerator.")
    parser.add_argument("name", metavar="PACKAGE.STEP")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--until", type=float, help="of time.monotonic(), as the session reads it")
    args = parser.parse_args()
    # Works inside of a hung call too, shows where it hangs, and ends a step without a parent. A
    # moment, not a duration: the start of Python, slow on a busy machine, must not add to it.
    limit_s = args.until - time.monotonic() if args.until else 600
    faulthandler.dump_traceback_later(max(limit_s, 0.001), exit=True)
    absent = missing(args.name)
    if absent:
        print(json.dumps({"missing": absent}), flush=True)
        return MISSING
    # The command of the lines that measure.report prints.
    sys.argv = [str(ROOT / "scripts" / "accelerator"), args.name, *["--tiny"] * args.tiny]
    step, function = load(args.name)
    contests = function(**(step.tiny if args.tiny else step.full))
    failed = False
    for contest in contests if isinstance(contests, Iterator) else ():
        try:
            contest.measure()
        except Exception:  # the next one is measured all the same
            print(f"failed: {contest.case}", file=sys.stderr)
            traceback.print_exc()
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
