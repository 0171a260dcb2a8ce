# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""W&B without a network: what a run's own file holds."""

import json
import logging
import math

import pytest

import wandb_file
from dovetail_train.logs.weights_and_biases import Wandb

pytest.importorskip("wandb")

pytestmark = pytest.mark.parity


def _history(directory):
    """Of each process in order: (run id, rows of scalars by step)."""
    import wandb

    wandb.teardown()  # its service may still be writing the file, as until a process ends
    found = []
    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        rows, run = {}, None
        for record in wandb_file.records(path):
            run = record.run.run_id or run
            items = {
                i.key or "/".join(i.nested_key): json.loads(i.value_json)
                for i in record.history.item
            }
            if items:
                step = items.pop("_step", record.history.step.num)
                rows[step] = {k: v for k, v in items.items() if not k.startswith("_")}
        found.append((run, rows))
    return found


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.usefixtures("quiet")
def test_an_offline_run_holds_each_step_once(tmp_path, caplog):
    directory = tmp_path / "new"
    sink = Wandb(project="p", id="one", config={"rate": 0.1}, directory=directory, mode="offline")
    sink.write(0, {"loss": 3.0, "loss/z": 0.5})
    sink.write(4, {"eval/bits_per_byte": 1.25})
    sink.write(4, {"loss": math.nan})
    with caplog.at_level(logging.INFO, logger="dovetail_train"):
        sink.write(2, {"loss": 9.0})
        sink.write(3, {"loss": 9.0})
    sink.write(5, {"loss": 1.0})
    sink.close()
    ((run, rows),) = _history(directory)
    assert run == "one"
    assert list(rows) == [0, 4, 5]
    assert rows[0] == {"loss": 3.0, "loss/z": 0.5}
    assert rows[4]["eval/bits_per_byte"] == 1.25
    assert math.isnan(float(rows[4]["loss"]))
    assert rows[5] == {"loss": 1.0}
    assert sink.repeated_writes == 2
    assert caplog.text.count("W&B has steps up to 3 already") == 1


@pytest.mark.usefixtures("quiet")
def test_a_second_process_continues_the_run_by_its_id(tmp_path):
    for step in (0, 1):
        sink = Wandb(project="p", id="same", directory=tmp_path, mode="offline")
        sink.write(step, {"loss": float(step)})
        sink.close()
    histories = _history(tmp_path)
    assert [run for run, _ in histories] == ["same", "same"]
    assert {k: v for _, rows in histories for k, v in rows.items()} == {
        0: {"loss": 0.0},
        1: {"loss": 1.0},
    }


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "variable, mode, written",
    [
        ("offline", None, 1),
        ("disabled", None, 0),
        ("disabled", "offline", 1),
        ("offline", "disabled", 0),
        ("online", "offline", 1),
        ("online", "disabled", 0),
    ],
)
def test_the_mode_is_that_of_the_environment_unless_it_is_given(
    variable, mode, written, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", variable)
    sink = Wandb(project="p", id="one", directory=tmp_path, mode=mode)
    sink.write(0, {"loss": 3.0})
    sink.close()
    assert [rows for _, rows in _history(tmp_path)] == [{0: {"loss": 3.0}}] * written
