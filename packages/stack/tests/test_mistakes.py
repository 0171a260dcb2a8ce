# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Usual mistakes at the command, `mistakes.toml`: what was typed, and the answer."""

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from dovetail_serve import Tensor, export
from dovetail_stack import cli, settings

TABLE = tomllib.loads((Path(__file__).parent / "mistakes.toml").read_text(encoding="utf-8"))
CASES = [
    pytest.param(case, id=case["typed"], marks=[pytest.mark.thorough] if place else [])
    for group in TABLE.values()
    for place, case in enumerate(group["cases"])
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, files, source, chats):
    """The folder that the head of the table describes."""
    root = tmp_path_factory.mktemp("mistakes")
    for name in ("text", "more"):
        shutil.copytree(files[0], root / name)
    for name in ("empty", "taken", "half", "cut"):
        (root / name).mkdir()
    (root / "taken" / "note.txt").write_text("mine")
    settings.create(settings.Pretrain, {"text": str(root / "text")}).save(root / "cut")
    whole = (root / "cut" / "run.json").read_text()
    (root / "cut" / "run.json").write_text(whole[: len(whole) // 2])
    shutil.copytree(source, root / "model")
    config = json.loads((source / "config.json").read_text())
    config["max_position_embeddings"] = 512  # more than the default --length
    (root / "model" / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "config.json", root / "half")
    shutil.copytree(source, root / "damaged")
    weights = bytearray((root / "damaged" / "model.safetensors").read_bytes())
    weights[9] ^= 1
    (root / "damaged" / "model.safetensors").write_bytes(weights)
    _bundle(root / "torn" / "model" / "1")
    shutil.copy(chats, root / "chats.jsonl")
    (root / "notes.txt").write_text("milk, bread\n")
    return root


def _bundle(out):
    """Writes a bundle whose largest file is cut."""
    export(
        lambda params, *, x: {"y": x @ params["w"]},
        {"w": np.eye(3, dtype=np.float32)},
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": np.eye(2, 3, dtype=np.float32)},
        batch_sizes=(2,),
        platforms=("cpu",),
    ).save(out)
    largest = max((f for f in out.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-7])


def answered(capsys, typed):
    """The exit code, standard output and standard error of a command."""
    try:
        code = cli.main(shlex.split(typed))
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_table_has_ten_of_each_kind():
    assert [len(group["cases"]) for group in TABLE.values()] == [10] * 6


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_in_two_lines(capsys, monkeypatch, folder, case):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for absent in ("ray", "lm_eval", "lm_eval.tasks", "libtpu"):
        monkeypatch.setitem(sys.modules, absent, None)
    code, _, answer = answered(capsys, case["typed"])
    assert code == case["code"], answer
    assert len(answer.splitlines()) <= 2, answer
    assert "Traceback" not in answer
    assert [wanted for wanted in case["answer"] if not re.search(wanted, answer)] == [], answer
