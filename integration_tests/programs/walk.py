# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs `dovetail` up to the first training step: walk.py ARGUMENTS OF DOVETAIL

Prints one JSON object: `entered`, the files of packages in which a function ran, and `stack`, the
[file, function] from `main` to the step. A call made by the body of a module during its import,
directly or indirectly, does not count: a reader meets tables and classes by name.
"""

import inspect
import json
import os
import sys
from pathlib import Path

from dovetail_stack.cli import main
from dovetail_train import Trainer

ROOT = str(Path(__file__).resolve().parents[2])
ran = set()


def of_project(name):
    return name.startswith(ROOT) and os.sep + "src" + os.sep in name


def entered(frame, event, argument):
    code = frame.f_code
    if event != "call" or code.co_filename in ran or not of_project(code.co_filename):
        return
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return  # the body of a module or class
    while frame := frame.f_back:
        if frame.f_code.co_name == "<module>" and of_project(frame.f_code.co_filename):
            return  # part of an import
    ran.add(code.co_filename)


def measured(self, *arguments, **options):
    stack, frame = [], sys._getframe(1)
    while frame is not None:
        if of_project(frame.f_code.co_filename):
            stack.append((os.path.relpath(frame.f_code.co_filename, ROOT), frame.f_code.co_name))
        frame = frame.f_back
    files = sorted(os.path.relpath(file, ROOT) for file in ran)
    json.dump({"entered": files, "stack": stack[::-1]}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":  # not in the workers that write the corpus
    Trainer.step = measured
    sys.setprofile(entered)
    sys.exit(main())
