# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail checkpoint`: that all of the library's command is there, mounted."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint import Store
from dovetail_stack import cli


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("run") / "run"
    with Store(root) as store:
        store.save(1, model={"w": jnp.arange(5.0)})
        store.save(2, model={"v": jnp.arange(5.0)})
    return root


def test_verify_and_diff_and_their_exit_codes(run, capsys):
    assert cli.main(["checkpoint", "verify", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{run}/2: verified\n{run}/1: verified\n"
    assert "verify: 100%" in printed.err
    line = ["checkpoint", "diff", str(run / "1"), str(run / "2")]
    assert cli.main(line) == 1
    assert cli.main([*line, "--rename", "w", "v"]) == 0
    assert capsys.readouterr().out.endswith("1 equal; read no array\n")


def test_convert(run, tmp_path, capsys):
    line = ["checkpoint", "convert", str(run / "1"), "--out", str(tmp_path / "hf"), "--format"]
    assert cli.main([*line, "safetensors", "--rename", "w", "x"]) == 0
    assert "convert: 100%" in capsys.readouterr().err
    assert (tmp_path / "hf" / "model.safetensors").is_file()
    assert cli.main(["checkpoint", "inspect", str(tmp_path / "hf")]) == 0
    assert "  x  float32[5]" in capsys.readouterr().out


def test_an_error_is_code_1_and_a_wrong_line_2(tmp_path, capsys):
    assert cli.main(["checkpoint", "inspect", str(tmp_path)]) == 2
    assert "dovetail: error: there must be a checkpoint" in capsys.readouterr().err
    for line in (["checkpoint"], ["checkpoint", "verify", str(tmp_path), "--jso"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(line)
        assert stopped.value.code == 2
        assert "dovetail checkpoint" in capsys.readouterr().err


def test_help_of_an_action(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["checkpoint", "convert", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "usage: dovetail checkpoint convert" in printed
    assert "--stack P Q AXIS" in printed


def test_other_commands_do_not_import_the_library():
    program = (
        "import sys; from dovetail_stack.cli import parser; parser(['doctor']); "
        "sys.exit('dovetail_checkpoint' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_run_of_dovetail_train_is_taken_by_every_action(tmp_path, capsys):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        with Store(tmp_path / name / "checkpoints") as store:
            for step in (2, 10):
                value = np.full((2, 3), step, np.int16)
                store.save(step, params={"w": value}, train={"count": np.zeros(1, np.int8)})
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert cli.main(["checkpoint", "inspect", a]) == 0
    assert capsys.readouterr().out.count("\nstep ") == 2
    assert cli.main(["checkpoint", "inspect", f"{a}/2"]) == 0
    assert "w  int16[2, 3]" in capsys.readouterr().out
    assert cli.main(["checkpoint", "verify", a, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["checked"]) == 2
    assert cli.main(["checkpoint", "diff", a, b]) == 0
    assert f"{a}: {a}/checkpoints/10/params\n" in capsys.readouterr().err
    assert cli.main(["checkpoint", "diff", a, f"{b}/2/params"]) == 1
    line = ["checkpoint", "convert", a, "--out", str(tmp_path / "hf"), "--format", "safetensors"]
    assert cli.main(line) == 0
    assert (tmp_path / "hf" / "model.safetensors").is_file()


def test_a_run_without_a_step_says_so(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert cli.main(["checkpoint", "inspect", str(tmp_path)]) == 2
    assert "a run must have saved a step" in capsys.readouterr().err
