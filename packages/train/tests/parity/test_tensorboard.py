# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard itself reads of a run that was resumed."""

import math

import pytest

from dovetail_train.logs.tensorboard import TensorBoard

pytest.importorskip("tensorboard")

pytestmark = [
    pytest.mark.parity,
    # TensorBoard's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard"),
]


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = [(0, 6, {2: 20.0, 4: math.nan}), (4, 9, {6: 60.0, 8: 80.0}), (7, 8, {})]
    for first, last, evals in runs:
        sink = TensorBoard(tmp_path)
        for step in range(first, last):
            if step in evals:
                sink.write(step, {"eval/x": evals[step]})
            sink.write(step, {"loss": step / 4})
        sink.close()
    found = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    assert found.Tags()["scalars"] == ["loss", "eval/x"]
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(n, n / 4) for n in range(8)]
    evals = {e.step: e.value for e in found.Scalars("eval/x")}
    assert [e.step for e in found.Scalars("eval/x")] == [2, 4, 6]
    assert (evals[2], evals[6]) == (20.0, 60.0)
    assert math.isnan(evals[4])
