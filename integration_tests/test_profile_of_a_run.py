# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train --profile`: the trace and its page beside a run."""

import sysconfig
from pathlib import Path

import pytest

from dovetail_profile import read
from dovetail_stack import cli

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
SIZES = (
    *("--vocab-size", "300", "--embed", "16", "--depth", "1", "--heads", "2", "--mlp", "24"),
    *("--length", "32", "--global-batch", "4"),
)


@pytest.mark.thorough
def test_steps_are_profiled_beside_the_run(tmp_path, capsys):
    run, page = tmp_path / "run", tmp_path / "run" / "profile.html"
    new = ["train", "pretrain", "--text", str(TEXT), "--pattern", "*.py", *SIZES]
    assert cli.main([*new, "--steps", "9", "--profile", "6:3", "--out", str(run)]) == 0
    assert f"Where the time went: {page}" in capsys.readouterr().err
    profile = read(run / "trace")
    assert profile.steps().column("step") == [6, 7, 8]
    # Also if the program came from a compilation cache: JAX would leave it out.
    assert "jit_train_step" in profile.modules().column("program")
    assert page.stat().st_size > 1 << 20  # with the library that draws it
    assert cli.main(["runs", "show", str(run)]) == 0
    assert f"page: {page}" in capsys.readouterr().out.splitlines()
