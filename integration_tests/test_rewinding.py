# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train --rewind --leave-out` on a finished run, whole and cut off."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest

from dovetail_stack import cli, rewinding

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
STEPS = 20
TINY = (
    *("--pattern", "*.py", "--held-out", "0.2", "--vocab-size", "300", "--steps", str(STEPS)),
    *("--embed", "16", "--depth", "1", "--heads", "1", "--kv-heads", "1", "--mlp", "32"),
    *("--length", "32", "--global-batch", "4", "--save-every", "4"),
)


def train(out, *words):
    return cli.main(["train", *map(str, words), "--out", str(out)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    assert train(out, "pretrain", "--text", TEXT, *TINY) == 0
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def losses(out, generation):
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return {x["step"]: x["loss"] for x in lines if x["generation"] == generation and "loss" in x}


def left_out(out):
    return json.loads((out / "run.json").read_text())["settings"]["leave_out"]


def weights(out):
    return (out / "hf" / "model.safetensors").read_bytes()


@pytest.mark.thorough
def test_a_run_goes_back_and_passes_over_the_batches_of_a_spike(finished, copy, capsys):
    assert train(copy, "--leave-out", "14:16") == 2
    refused = capsys.readouterr().err
    assert "the checkpoint of step 20: pass --rewind 14, or a smaller one" in refused
    assert weights(copy) == weights(finished)
    assert train(copy, "--rewind", 15, "--leave-out", "14:16") == 0
    assert "goes on from step 12, without steps 14:16. Set aside" in capsys.readouterr().err
    kept = {path.name for path in (copy / "checkpoints").iterdir()}
    assert {"16.dovetail-rewound-0", "20.dovetail-rewound-0", "16", "20"} <= kept
    before, after = losses(copy, 0), losses(copy, 1)
    assert sorted(after) == list(range(12, STEPS))
    assert [after[i] == before[i] for i in (12, 13, 14, 15)] == [True, True, False, False]
    assert left_out(copy) == [[14, 16]]
    assert weights(copy) != weights(finished)
    launches = [json.loads(x) for x in (copy / "launches.jsonl").read_text().splitlines()]
    assert launches[-2]["changes"] == {"step": [20, 12], "leave_out": ["", "14:16"]}
    assert train(copy, "--steps", STEPS + 1) == 0  # later launches leave them out too
    assert left_out(copy) == [[14, 16]]


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rewind_that_is_cut_off_is_completed_by_the_next_launch(
    finished, copy, tmp_path, monkeypatch, moment
):
    def cut(*args):
        if moment == "after":
            whole(*args)
        raise KeyboardInterrupt

    whole, other = rewinding.rewind, tmp_path / "other"
    shutil.copytree(finished, other)
    asked = ("--rewind", 16, "--leave-out", "17:18")
    with monkeypatch.context() as patched:
        patched.setattr(rewinding, "rewind", cut)
        assert train(copy, *asked) == 130
    assert train(copy, "--rewind", 12) == 2  # another request must wait
    assert train(copy, *(asked if moment == "before" else ())) == 0
    assert train(other, *asked) == 0
    assert weights(copy) == weights(other) != weights(finished)
    assert left_out(copy) == [[17, 18]]


def test_a_run_that_does_not_exist_has_nothing_to_leave_out(tmp_path, capsys):
    assert train(tmp_path / "run", "--rewind", 3) == 2
    assert "must have steps to go back or to leave some out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
