# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The way from a command line to the first training step stays short."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.once]

FILES, HOPS = 97, 6
ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "integration_tests" / "programs" / "walk.py"
OPTIONS = "--embed 32 --depth 1 --heads 1 --vocab-size 300 --length 32 --global-batch 2 --steps 1"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The files that are entered, equal copies once; and the stack at the call of the step."""
    folder = tmp_path_factory.mktemp("walk")
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(f"the {name} holds a few words " * 100)
    line = ["train", "pretrain", "--text", str(folder), "--out", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, PROGRAM, *line, "--pattern", "*.txt", *OPTIONS.split()],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    originals = {(ROOT / file).read_bytes(): file for file in reversed(result["entered"])}
    return sorted(originals.values()), result["stack"]


def test_the_way_is_short(measured):
    """A file more is a file more that each reader opens: put it off the way, or join two."""
    entered, stack = measured
    assert len(entered) <= FILES, "\n".join(entered)
    pages = [file for file, _ in itertools.groupby(file for file, _ in stack)]
    assert len(pages) - 1 <= HOPS, "\n".join(map(":".join, stack))


def test_it_leads_from_the_command_to_the_trainer_without_imports_and_second_copies(measured):
    entered, stack = measured
    assert stack[0] == ["packages/stack/src/dovetail_stack/cli.py", "main"]
    assert stack[-1][0].startswith("packages/train/src/dovetail_train/")
    assert "packages/optim/src/dovetail_optim/muon.py" in entered
    # Its table calls `Family` while it is imported; no run of a Llama needs it.
    assert "packages/models/src/dovetail_models/families/qwen2.py" not in entered
    assert "packages/models/src/dovetail_models/hf/table.py" not in entered
    assert sum(file.endswith("/_patterns.py") for file in entered) == 1
