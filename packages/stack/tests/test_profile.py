# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail profile`, and the trace and the page of `dovetail train --profile`."""

import json
import sys

import jax
import jax.numpy as jnp
import pytest

import dovetail_profile
from dovetail_stack import cli, profiling
from dovetail_stack.recipes.options import Monitoring
from dovetail_train._traces import process_trace


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A directory with the trace of three steps, as a run has it."""
    run = tmp_path_factory.mktemp("run")
    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    f(x).block_until_ready()
    with process_trace(run / profiling.TRACE, run="step0", process=0):
        for i in range(3):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                f(x).block_until_ready()
    return run


def _words(*line):
    return cli.parser(line).parse(line)


def test_a_path_is_shown_and_a_command_is_run(traced, monkeypatch):
    monkeypatch.chdir(traced)
    args = _words("profile", "trace", "--json")
    assert (args.action, args.path, args.json) == ("show", "trace", True)
    for python in ("python", "python3.12", sys.executable):
        args = _words("profile", "--", python, "-m", "tool", "--steps", "3", "x")
        assert (args.action, args.module) == ("run", True)
        assert args.script == ["tool", "--steps", "3", "x"]
    (traced / "train.py").write_text("")
    args = _words("profile", "--", "train.py", "--json")
    assert (args.action, args.module, args.script) == ("run", False, ["train.py", "--json"])
    args = _words("profile", "--", "pytest", "-q")
    assert args.script[0].endswith("/pytest")
    assert _words("profile", "diff", "a", "b").action == "diff"


def test_what_is_no_path_is_answered_with_the_actions(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["profile", "nowhere"])
    assert stopped.value.code == 2
    assert "ACTION must be one of run, " in capsys.readouterr().err


@pytest.mark.capability("where the time went in a run, as tables and a page")
def test_a_run_is_shown_with_its_page(traced, capsys):
    assert cli.main(["profile", str(traced), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in shown["steps"]] == [0, 1, 2]
    assert sum(row["self_us"] for row in shown["ops"]) > 0
    page = traced / profiling.PAGE
    assert shown["page"] == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert cli.main(["profile", "show", str(traced), "--out", str(traced / "other.html")]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line in shown]
    assert heads == ["suggestions", "steps", "scopes", "ops"]
    assert (traced / "other.html").is_file()


def test_a_page_that_cannot_be_made_fails_no_run(traced, tmp_path, capsys, monkeypatch):
    profiling.write_page(tmp_path)
    assert "No step was traced" in capsys.readouterr().err

    def refused(*_):
        raise ImportError("plotly draws it, got none: pip install 'dovetail-profile[report]'")

    monkeypatch.setattr(dovetail_profile.Profile, "save", refused)
    profiling.write_page(traced)
    said = capsys.readouterr().err
    assert f"The trace is kept in {traced / 'trace'}, without a page: plotly" in said


def test_steps_to_trace_are_two_numbers():
    assert Monitoring().traced is None
    assert Monitoring(profile="10:5").traced == (10, 5)
    for wrong in ("10", "0:5", "10:0", "10:5:1", "a:b", ""):
        with pytest.raises(ValueError, match=r"each at least 1, got profile=.*: pass profile=10:5"):
            Monitoring(profile=wrong)


def test_a_resumed_run_has_its_trace_already(tmp_path):
    (hook,) = profiling.hooks(tmp_path, 10, 5)
    assert hook.every == 5
    (tmp_path / "trace/plugins/profile/step50").mkdir(parents=True)
    assert profiling.hooks(tmp_path, 10, 5) == []
    assert len(profiling.hooks(tmp_path, 51, 5)) == 1
