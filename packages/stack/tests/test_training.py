# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_stack import settings
from dovetail_stack.quickstart import training


def _write(path, generations, torn=""):
    lines = [
        json.dumps({"step": step, "generation": i, "loss": loss})
        for i, losses in enumerate(generations)
        for step, loss in losses.items()
    ]
    lines.insert(1, json.dumps({"step": 1, "generation": 0, "eval/loss": 9.0}))
    path.write_text("\n".join(lines) + "\n" + torn)


def test_repeated_steps_are_compared_bit_by_bit(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    _write(metrics, [{0: 3.0, 1: 2.5, 2: 2.25}, {1: 2.5, 2: 2.25, 3: 2.0}], torn='{"step": 4, "ge')
    found = training.compare_generations(metrics)
    assert (found.killed_after, found.resumed_from, found.repeated, found.equal) == (2, 1, 2, 2)
    assert found.bit_exact
    _write(metrics, [{0: 3.0, 1: 2.5, 2: 2.25}, {1: 2.5, 2: 2.2500002, 3: 2.0}])
    found = training.compare_generations(metrics)
    assert (found.repeated, found.equal) == (2, 1)
    assert not found.bit_exact


def test_nothing_repeated_proves_nothing(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    _write(metrics, [{0: 3.0, 1: 2.5}])
    assert not training.compare_generations(metrics).bit_exact
    _write(metrics, [{0: 3.0, 1: 2.5}, {2: 2.0}])
    assert not training.compare_generations(metrics).bit_exact


@pytest.mark.parametrize(
    "steps, saved_before, killed",
    [(400, 200, 208), (600, 300, 308), (17, 8, 11), (3, 1, 1), (1, 0, 0), (99, 45, 53)],
)
def test_the_kill_comes_some_steps_after_a_checkpoint_and_before_the_end(
    tmp_path, steps, saved_before, killed
):
    run = settings.create(settings.Pretrain, {"text": "/t", "steps": steps})
    run.save(tmp_path)
    assert saved_before % run.training.saves_every(steps) == 0
    assert training._killing_step(tmp_path) == killed
    assert saved_before <= killed < steps
