# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command: its words, its files and its exit codes."""

import json
import re

import jax
import pytest

from dovetail_kernels import attention, record_calls
from dovetail_kernels.sweep import cli
from dovetail_kernels.sweep.cli import main

Q = jax.ShapeDtypeStruct((1, 24, 2, 8), "float32")
TYPED = ["attention", *(f"{name}=float32[1,24,2,8]" for name in "qkv"), "causal=true", "window=5"]


def test_a_typed_call_is_that_of_the_operation():
    with record_calls() as calls:
        jax.eval_shape(lambda q: attention(q, q, q, causal=True, window=5), Q)
    assert cli._typed(*TYPED) == calls


def test_a_tuning_is_written_and_shown(tmp_path, capsys):
    file = tmp_path / "tuned.json"
    assert main(["tune", *TYPED, "--out", str(file), "--budget-s", "0"]) == 0
    written = capsys.readouterr().out
    assert "attention is not measured: budget_s=0 was spent" in written
    assert main(["show", str(file)]) == 0
    assert capsys.readouterr().out == written
    assert main(["show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())


def test_recorded_calls_are_taken_from_their_file(tmp_path, capsys):
    calls, file = tmp_path / "calls.json", tmp_path / "tuned.json"
    with record_calls(calls):
        jax.eval_shape(attention, Q, Q, Q)
    assert main(["tune", "--calls", str(calls), "--out", str(file), "--budget-s", "0"]) == 0
    assert "attention is not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["conv"], "OPERATION must be one of attention, .*, got conv"),
        ([], "one call as words, or --calls FILE, got neither"),
        ([*TYPED, "--calls", "x"], "got both"),
        (["attention", "query=float32[1,2,3,4]"], "no argument query"),
        (["attention", "q=float32[1,2,3,4]"], r"missing .*'k'.*\. Type each as NAME=DTYPE"),
        (
            ["attention", "q=float33[1,2,3,4]"],
            r"'float33' not understood\. Type each as NAME=DTYPE",
        ),
    ],
)
def test_a_wrong_line_is_answered(tmp_path, capsys, words, message):
    code = main(["tune", *words, "--out", str(tmp_path / "t.json")])
    assert code == 2
    assert re.search(message, capsys.readouterr().err)
    assert not [*tmp_path.iterdir()]


def test_a_file_without_a_folder_is_refused_before_anything_is_measured(tmp_path, capsys):
    assert main(["tune", *TYPED, "--out", str(tmp_path / "no" / "t.json")]) == 2
    answer = capsys.readouterr().err
    assert re.match(r"error: --out must be in a folder that exists, got --out \S+ Make it", answer)


def test_a_damaged_file_is_refused(tmp_path, capsys):
    (tmp_path / "tuned.json").write_text("{")
    assert main(["show", str(tmp_path / "tuned.json")]) == 3
    assert "a tuning file must be as tune wrote it" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_default_with_a_wrong_answer_fails_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dovetail_kernels.sweep.tune._difference", lambda *_: "off by 1")
    assert main(["tune", *TYPED, "--out", str(tmp_path / "t.json")]) == 1
    assert "without blocked: differs from reference: off by 1" in capsys.readouterr().out
