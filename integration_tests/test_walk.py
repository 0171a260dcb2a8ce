# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The ways from a command line to the first training step, and through a step, stay short."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.once]

# The record of a launch is five files of a library: the run, its launch, machine, lock and events.
FILES, HOPS = 100, 5
FILES_OF_FIT, BOTH_WAYS = 43, 3
ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "integration_tests" / "programs"
OPTIONS = "--embed 32 --depth 1 --heads 1 --vocab-size 300 --length 32 --global-batch 2 --steps 1"


def _walked(program, *arguments):
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]).values()


def test_two_steps_with_saves_enter_few_files(tmp_path):
    entered, both_ways = _walked("fit_walk.py", tmp_path)
    assert "packages/train/src/dovetail_train/step/update.py" in entered
    assert "packages/checkpoint/src/dovetail_checkpoint/run/writer.py" in entered
    assert len(entered) <= FILES_OF_FIT, "\n".join(entered)
    assert len(both_ways) <= BOTH_WAYS, "\n".join(map(" and ".join, both_ways))


def test_the_way_is_short_and_leads_from_the_command_to_the_trainer(tmp_path):
    """A file more is a file more that each reader opens: put it off the way, or join two."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"the {name} holds a few words " * 100)
    line = ["train", "pretrain", "--text", tmp_path, "--out", tmp_path / "run"]
    # The files that are entered, and the stack at the call of the step.
    entered, stack = _walked("walk.py", *line, "--pattern", "*.txt", *OPTIONS.split())
    entered = {(ROOT / file).read_bytes(): file for file in entered}.values()  # equal copies once
    assert len(entered) <= FILES, "\n".join(sorted(entered))
    pages = [file for file, _ in itertools.groupby(file for file, _ in stack)]
    assert len(pages) - 1 <= HOPS, "\n".join(map(":".join, stack))
    assert stack[0] == ["packages/stack/src/dovetail_stack/cli.py", "main"]
    assert stack[-1][0].startswith("packages/train/src/dovetail_train/")
    assert "packages/optim/src/dovetail_optim/matrix/muon.py" in entered
    # Its table calls `Family` while it is imported; no run of a Llama needs it.
    assert "packages/models/src/dovetail_models/families/qwen2.py" not in entered
    assert "packages/models/src/dovetail_models/tables/table.py" not in entered
    assert sum(file.endswith("/_patterns.py") for file in entered) == 1
