# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import pytest

from dovetail_checkpoint import Best, Retention, checksums, retention
from dovetail_checkpoint.pruning import Pruner, unmeasured


def make(root, step, **metrics):
    (root / str(step) / "metrics").mkdir(parents=True)
    (root / str(step) / "metrics" / "metrics").write_text(json.dumps(metrics))
    checksums.write(root / str(step))


def pruner_of(root, **options):
    return Pruner(root, Retention(**options), checked_only=True)


def test_a_deletion_that_fails_is_counted_said_and_tried_again(tmp_path, monkeypatch, caplog):
    pruner = pruner_of(tmp_path, latest=1)
    for step in (1, 2, 3):
        make(tmp_path, step)

    def busy(path):
        raise OSError(16, "Device or resource busy", "a file inside")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", busy)
        pruner.prune(())
    assert pruner.failures == 2
    assert "2 old steps could not be deleted, first [Errno 16] Device or resource busy: " in (
        caplog.text
    )
    assert "the next save tries again" in caplog.text
    assert retention.committed_steps(tmp_path) == [3]
    pruner.prune(())
    assert pruner.failures == 2
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_root_that_cannot_be_listed_is_a_failure_too(tmp_path, caplog):
    pruner = pruner_of(tmp_path / "gone", latest=1)
    pruner.prune(())
    assert pruner.failures == 1
    assert "No such file or directory" in caplog.text


def test_a_step_that_somebody_else_deletes_is_no_failure(tmp_path, monkeypatch):
    pruner = pruner_of(tmp_path, latest=1)
    for step in (1, 2):
        make(tmp_path, step)
    doomed = Retention.doomed

    def deleted_meanwhile(self, *args, **options):
        steps = doomed(self, *args, **options)
        shutil.rmtree(tmp_path / "1")
        return steps

    monkeypatch.setattr(Retention, "doomed", deleted_meanwhile)
    pruner.prune(())
    assert pruner.failures == 0


def test_of_a_step_that_is_a_link_the_link_goes(tmp_path):
    root, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for step in (1, 2):
        make(root, step)
    (root / "1").rename(elsewhere)
    (root / "1").symlink_to(elsewhere)
    pruner = pruner_of(root, latest=1)
    pruner.prune(())
    assert pruner.failures == 0
    assert [path.name for path in root.iterdir()] == ["2"]
    assert checksums.check(elsewhere) == []


def said(caplog):
    return [r.getMessage() for r in caplog.records if "to be compared" in r.getMessage()]


def test_a_metric_that_no_step_has_is_said_at_the_first_deletion_and_once(tmp_path, caplog):
    pruner = pruner_of(tmp_path, latest=2, best=Best("eval/los", mode="min"))
    for step in range(1, 6):
        make(tmp_path, step, **{"eval/loss": 1.0 / step, "lr": 0.1})
        pruner.prune(())
        assert len(said(caplog)) == (step > 2), step
    (message,) = said(caplog)
    assert message == (
        f"{tmp_path}: a metric must be saved with a step to be compared, got Best('eval/los') and "
        "none in steps [1, 2, 3], so none of them is kept as the best: they have ['eval/loss']; "
        "call save(step, metrics={'eval/los': ...}), or measure at the steps that are saved"
    )


@pytest.mark.parametrize("measured", [1, 3])
def test_a_metric_of_one_step_is_enough(tmp_path, caplog, measured):
    pruner = pruner_of(tmp_path, latest=2, best=Best("loss", mode="min"))
    for step in (1, 2, 3):
        make(tmp_path, step, **({"loss": 1.0} if step == measured else {}))
    pruner.prune(())
    assert said(caplog) == []


def test_steps_without_metrics_and_many_metrics_are_told_apart():
    best = Best("loss", mode="min")
    assert "they have no metrics" in unmeasured(best, {1: {}, 2: {}})
    many = {f"metric {i:02}": 0.0 for i in range(30)}
    assert "'metric 09']" in unmeasured(best, {1: many})
    assert "metric 10" not in unmeasured(best, {1: many})
