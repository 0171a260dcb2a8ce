# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The way from a command line to the first training step, in files and in hops.

    python scripts/walk.py [ROOT]

Trains a tiny model with the packages below ROOT (this repository) up to the call of the first
step, and prints one JSON object:

- files_entered: files in which a function ran, as a reader follows the calls. A call made by the
  body of a module during its import, directly or indirectly, does not count: tables and classes
  are read by name. Equal copies of a file of scripts/shared count once.
- entered: these files, without the copies.
- hops: files that the stack goes through between `main` and the call of the step.
- stack: the functions on it.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = "--embed 32 --depth 1 --heads 1 --vocab-size 300 --length 32 --global-batch 2 --steps 1"

WALK = """
import json, os, sys
root = sys.argv.pop(1)
ran = set()
def of_project(name):
    return name.startswith(root) and os.sep + "src" + os.sep in name
def entered(frame, event, argument):
    if event != "call":
        return
    name = frame.f_code.co_filename
    if name in ran or not (frame.f_code.co_flags & 1 and of_project(name)):
        return  # without CO_OPTIMIZED it is the body of a module or class
    above = frame.f_back
    while above is not None:
        if above.f_code.co_name == "<module>" and of_project(above.f_code.co_filename):
            return  # part of an import
        above = above.f_back
    ran.add(name)
from dovetail_stack.cli import main
def measured(self, *arguments, **options):
    stack, frame = [], sys._getframe(1)
    while frame is not None:
        if of_project(frame.f_code.co_filename):
            stack.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    files = {os.path.relpath(f, root) for f in ran}
    stack = [(os.path.relpath(f, root), name) for f, name in reversed(stack)]
    print("WALK" + json.dumps({"ran": sorted(files), "stack": stack}), flush=True)
    os._exit(0)
import dovetail_train
dovetail_train.Trainer.step = measured
sys.setprofile(entered)
sys.exit(main())
"""


def walk(root: Path) -> dict[str, object]:
    """The files and the hops of the packages below `root`."""
    sources = [str(path) for path in sorted(root.glob("packages/*/src"))]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.mkdir()
        for name in ("a.txt", "b.txt"):
            (text / name).write_text(f"the {name} holds a few words " * 100)
        line = ["train", "pretrain", "--text", str(text), "--out", f"{folder}/run"]
        done = subprocess.run(
            [sys.executable, "-c", WALK, str(root), *line, *OPTIONS.split()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("WALK")]
    if not lines:
        raise RuntimeError(f"the command must reach a step, got {done.stderr[-2000:]}")
    found = json.loads(lines[0].removeprefix("WALK"))
    texts = {(root / file).read_bytes(): file for file in reversed(found["ran"])}
    files = [file for file, _ in found["stack"]]
    pages = [file for file, _ in itertools.groupby(files)]
    return {
        "files_entered": len(texts),
        "entered": sorted(texts.values()),
        "hops": len(pages) - 1,
        "stack": [f"{file}:{name}" for file, name in found["stack"]],
    }


if __name__ == "__main__":
    print(json.dumps(walk(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT), indent=1))
