# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail` whose training waits at chosen steps: gated.py STEP[,STEP...] ARGUMENT...

Once a run has logged the loss of a STEP it prints "logged STEP" and waits for a line of input, so
that a signal meets it there, or on its way to the next, however slow the machine is.
"""

import runpy
import sys
from collections.abc import Mapping

from dovetail_train import Jsonl

gates = {int(step) for step in sys.argv.pop(1).split(",")}
write = Jsonl.write


def gated(self: Jsonl, step: int, scalars: Mapping[str, float]) -> None:
    write(self, step, scalars)
    if "loss" in scalars and step in gates:
        sys.stdout.write(f"logged {step}\n")
        sys.stdout.flush()
        sys.stdin.readline()


Jsonl.write = gated
runpy.run_module("dovetail_stack", run_name="__main__", alter_sys=True)
