# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Exported runs, as the readers of TensorBoard and W&B see them."""

import json
import math

import numpy as np
import pytest

import wandb_file
from dovetail_runs import Run, export

pytest.importorskip("tensorboard")
pytest.importorskip("wandb")

pytestmark = pytest.mark.parity


@pytest.fixture
def run(tmp_path):
    """Two launches, the second of which repeats a step; an evaluation, and a NaN."""
    made = Run(tmp_path / "first")
    with made.launch({"optimizer": {"rate": 0.1}, "steps": 4}) as launch:
        for step in range(3):
            launch.write(step, {"loss": 9.0 - step})
    with made.launch() as launch:
        for step, loss in ((2, 0.5), (3, math.nan)):
            launch.write(step, {"loss": loss})
        launch.write(4, {"eval/loss": 0.25})
        launch.write_text(4, "sample", "once upon a time")
        launch.write_image(4, "digit", np.zeros((2, 3), np.uint8))
        launch.write_histogram(4, "weights", [0.0, 1.0, 1.0, 4.0], bins=2)
    made.tag("baseline")
    return made


def test_tensorboard_shows_the_curves_with_their_times(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(export(run, tmp_path / "logs", to="tensorboard")))
    shown.Reload()
    assert set(shown.Tags()["scalars"]) == {"loss", "eval/loss"}
    curve = run.metrics.curve("loss")
    points = shown.Scalars("loss")
    assert [point.step for point in points] == curve.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal([point.value for point in points], [9.0, 8.0, 0.5, math.nan])
    assert [point.wall_time for point in points] == curve.times_s.tolist()
    text = shown.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| rate | 0.1 |" in text
    assert shown.Tags()["images"] == ["digit"]
    assert shown.Tags()["histograms"] == ["weights"]
    assert [event.step for event in shown.Tensors("sample/text_summary")] == [4]


def test_wandb_has_settings_tags_and_a_row_for_each_step(run, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = export(run, tmp_path / "w", to="wandb-offline", project="p")
    wandb.teardown()  # its service may still be writing the file
    assert directory.parent == tmp_path / "w" / "wandb"
    (file,) = directory.glob("*.wandb")
    rows, head = {}, None
    for record in wandb_file.records(file):
        head = record.run if record.run.run_id else head
        items = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        if items:
            rows[items["_step"]] = items
    assert (head.project, head.display_name, list(head.tags)) == ("p", "first", ["baseline"])
    config = {item.key: json.loads(item.value_json) for item in head.config.update}
    assert (config["rate"], config["steps"]) == (0.1, 4)
    assert [rows[step]["loss"] for step in range(3)] == [9.0, 8.0, 0.5]
    assert math.isnan(float(rows[3]["loss"]))
    assert rows[4]["eval/loss"] == 0.25
    assert rows[4]["text/sample/_type"] == "html-file"
    assert rows[4]["image/digit/_type"] == "image-file"
    assert rows[4]["histogram/weights/values"] == [3, 1]
    assert rows[4]["histogram/weights/bins"] == [0, 2, 4]
    times = run.metrics.curve("loss").times_s.tolist()
    assert [rows[step]["_timestamp"] for step in range(4)] == pytest.approx(times, abs=1e-3)
