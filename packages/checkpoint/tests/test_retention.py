# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint import Best, Retention
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.run import retention
from dovetail_checkpoint.run.retention import Pruner, unmeasured
from dovetail_checkpoint.run.steps import committed_steps, describe_step, described_steps, missing


def make(root: Path, step: int, *, has_checksums: bool = True) -> None:
    (root / str(step)).mkdir(parents=True)
    (root / str(step) / "file").write_text(str(step))
    if has_checksums:
        checksums.write(root / str(step))


def test_the_newest_stay(tmp_path):
    for step in (10, 9, 100, 20):
        make(tmp_path, step)
    retention.retain(tmp_path, Retention(latest=2), damaged=(), checked_only=True)
    assert committed_steps(tmp_path) == [20, 100]


def test_nothing_goes_before_enough_have_checksums(tmp_path):
    make(tmp_path, 1)
    make(tmp_path, 2, has_checksums=False)
    retention.retain(tmp_path, Retention(latest=2), damaged=(), checked_only=True)
    assert committed_steps(tmp_path) == [1, 2]


def test_multiples_stay_for_ever(tmp_path):
    for step in (0, 4, 5, 6, 10, 11):
        make(tmp_path, step)
    retention.retain(tmp_path, Retention(latest=1, every=5), damaged=(), checked_only=True)
    assert committed_steps(tmp_path) == [0, 5, 10, 11]


@pytest.mark.parametrize(("mode", "stay"), [("min", [3, 9]), ("max", [4, 9])])
def test_the_best_step_stays_until_a_better_one_comes(tmp_path, mode, stay):
    rule = Retention(latest=1, best=Best("loss", mode=mode))
    for step, loss in ((1, 0.5), (3, 0.25), (4, 0.75), (7, 0.5), (9, None)):
        found = {} if loss is None else {"loss": loss, "other": -loss}
        save_metrics(tmp_path, step, found)
        retention.retain(tmp_path, rule, damaged=(), checked_only=True)
    assert committed_steps(tmp_path) == stay


def save_metrics(root: Path, step: int, found: dict) -> None:
    make(root, step)
    (root / str(step) / "metrics").mkdir()
    (root / str(step) / "metrics" / "metrics").write_text(json.dumps(found))
    checksums.write(root / str(step))


def test_of_equal_steps_the_newer_is_better():
    assert Best("x", mode="max").of({1: {"x": 2}, 5: {"x": 2}, 3: {"x": 2.0}, 4: {"y": 9}}) == [5]


def stays(step, saves, rule) -> bool:
    """Whether a sound step stays: the rule in words, one step at a time."""
    good = {s: loss for s, has_checksums, harm, loss in saves if has_checksums and not harm}
    if sum(other > step for other in good) < rule.latest or len(good) < rule.latest:
        return True
    if rule.every is not None and step % rule.every == 0:
        return True
    if rule.best is None or good.get(step) is None:
        return False
    rivals = [(loss, s) for s, loss in good.items() if s != step and loss is not None]
    mine = good[step]
    wins = {"min": lambda loss: loss < mine, "max": lambda loss: loss > mine}[rule.best.mode]
    better = [s for loss, s in rivals if wins(loss) or (loss == mine and s > step)]
    return len(better) < rule.best.count


rules = st.builds(
    Retention,
    latest=st.integers(1, 4),
    every=st.none() | st.integers(1, 6),
    best=st.none()
    | st.builds(
        Best, st.just("loss"), mode=st.sampled_from(["min", "max"]), count=st.integers(1, 3)
    ),
)
saves_of_a_run = st.lists(
    st.tuples(
        st.integers(0, 30), st.booleans(), st.booleans(), st.none() | st.sampled_from([0.1, 0.2, 3])
    ),
    unique_by=lambda save: save[0],
    max_size=12,
)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(saves_of_a_run, rules)
def test_what_goes_is_what_the_rule_says(saves, rule):
    sound = [step for step, _, harm, _ in saves if not harm]
    good = {
        step: {} if loss is None else {"loss": loss}
        for step, has_checksums, harm, loss in saves
        if has_checksums and not harm
    }
    doomed = rule.doomed(sound, good=good)
    assert doomed == sorted(step for step in sound if not stays(step, saves, rule))
    assert not good or max(good) not in doomed


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(saves_of_a_run, rules)
def test_over_any_sequence_of_saves_damaged_and_last_good_steps_stay(saves, rule):
    with tempfile.TemporaryDirectory() as directory:
        root, damaged = Path(directory), set()
        for step, has_checksums, is_damaged, loss in saves:
            before = committed_steps(root)
            save_metrics(root, step, {} if loss is None else {"loss": loss})
            if not has_checksums:
                (root / str(step) / checksums.SHA256SUMS).unlink()
            if is_damaged:
                damaged.add(step)
            whole = [s for s in (*before, step) if checksums.exists(root / str(s))]
            good = [s for s in whole if s not in damaged]
            retention.retain(root, rule, damaged=damaged, checked_only=True)
            after = committed_steps(root)
            assert damaged & {*before, step} <= set(after)
            assert set(sorted(good)[-rule.latest :]) <= set(after)
            gone = {*before, step} - set(after)
            assert all(sum(g > s for g in after if g not in damaged) >= rule.latest for s in gone)


def test_a_step_without_metadata_is_still_described(tmp_path):
    make(tmp_path, 4)
    assert describe_step(tmp_path, 4).items == ()
    assert describe_step(tmp_path, 4).metrics == {}


def test_a_step_that_is_deleted_while_it_is_described_is_left_out(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        make(tmp_path, step)
    stat, seen = os.stat, []

    def stat_and_delete(path, **options):
        if str(path).startswith(str(tmp_path / "2" / "")) and not seen:
            seen.append(path)
            retention.delete(tmp_path, 2)
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat_and_delete)
        found = described_steps(tmp_path)
    assert len(seen) == 1
    size = sum(path.stat().st_size for path in (tmp_path / "1").iterdir())
    assert [(step.step, step.bytes, step.has_checksums) for step in found] == [
        (1, size, True),
        (3, size, True),
    ]


def test_a_file_that_is_renamed_while_it_is_counted_is_no_error(tmp_path, monkeypatch):
    make(tmp_path, 1)
    partial = tmp_path / "1" / "SHA256SUMS.partial"
    partial.write_text("half")
    stat = os.stat

    def stat_late(path, **options):
        if Path(path) == partial:
            partial.unlink(missing_ok=True)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_late)
    (found,) = described_steps(tmp_path)
    assert found.bytes == sum(path.stat().st_size for path in (tmp_path / "1").iterdir())


def test_an_interrupted_deletion_leaves_no_step(tmp_path, monkeypatch):
    make(tmp_path, 1)

    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(retention.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retention.delete(tmp_path, 1)
    monkeypatch.undo()
    assert committed_steps(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["1.dovetail-deleting"]
    retention.delete_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_those_of_saves_and_deletions_alone(tmp_path):
    names = ["7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-12", "8.dovetail-deleting"]
    others = ["7", "notes", "7.dovetail-damaged-0", "x.orbax-checkpoint-tmp", "007"]
    for name in names + others:
        (tmp_path / name).mkdir()
    retention.delete_leftovers(tmp_path, step=8)
    assert {path.name for path in tmp_path.iterdir()} == {*names, *others} - {names[2]}
    retention.delete_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(others)
    assert committed_steps(tmp_path) == [7]


def test_a_leftover_that_still_fills_waits_for_the_next_time(tmp_path, monkeypatch, caplog):
    # What rmtree meets when another thread writes into the directory that it empties.
    leftover = tmp_path / "7.orbax-checkpoint-tmp"
    leftover.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(retention.shutil, "rmtree", lambda path: path.rmdir())
        (leftover / "late").touch()
        retention.delete_leftovers(tmp_path)
    assert f"{leftover} stays for now" in caplog.text
    retention.delete_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_steps_are_set_aside_one_after_another(tmp_path):
    for _ in range(2):
        make(tmp_path, 5)
        retention.set_aside(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "5.dovetail-damaged-0",
        "5.dovetail-damaged-1",
    ]


def test_no_root_is_no_step(tmp_path):
    assert committed_steps(tmp_path / "none") == []


@pytest.mark.usefixtures("unchecked")
def test_rules_that_keep_nothing_are_refused():
    with pytest.raises(ValueError, match=r"at least one step, got latest=0; use latest=1"):
        Retention(latest=0)
    with pytest.raises(ValueError, match=r"a number of steps, got every=0; use every=None"):
        Retention(every=0)
    with pytest.raises(ValueError, match=r"one step, got count=0; use Retention\(best=None"):
        Best("loss", mode="min", count=0)
    with pytest.raises(ValueError, match=r"by 'min' or 'max', got mode='least'; use mode='min'"):
        Best("loss", mode="least")


def test_best_is_a_best(unchecked):
    with pytest.raises(TypeError, match=r"must be a Best.* got best='loss'; use Best\(\"loss\""):
        Retention(best="loss")


def test_a_path_without_checkpoint_is_answered_with_the_steps_beside_it(tmp_path):
    make(tmp_path, 10)
    shown = missing(tmp_path / "99")
    assert shown == f", which does not exist; {tmp_path} has the steps [10]: give {tmp_path / '10'}"
    assert "an existing run" in missing(tmp_path / "other" / "99")
    assert "holds none" in missing(tmp_path)


def make_measured(root, step, **metrics):
    (root / str(step) / "metrics").mkdir(parents=True)
    (root / str(step) / "metrics" / "metrics").write_text(json.dumps(metrics))
    checksums.write(root / str(step))


def pruner_of(root, **options):
    return Pruner(root, Retention(**options), checked_only=True)


def test_a_deletion_that_fails_is_counted_said_and_tried_again(tmp_path, monkeypatch, caplog):
    pruner = pruner_of(tmp_path, latest=1)
    for step in (1, 2, 3):
        make_measured(tmp_path, step)

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
    assert committed_steps(tmp_path) == [3]
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
        make_measured(tmp_path, step)
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
        make_measured(root, step)
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
        make_measured(tmp_path, step, **{"eval/loss": 1.0 / step, "lr": 0.1})
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
        make_measured(tmp_path, step, **({"loss": 1.0} if step == measured else {}))
    pruner.prune(())
    assert said(caplog) == []


def test_steps_without_metrics_and_many_metrics_are_told_apart():
    best = Best("loss", mode="min")
    assert "they have no metrics" in unmeasured(best, {1: {}, 2: {}})
    many = {f"metric {i:02}": 0.0 for i in range(30)}
    assert "'metric 09']" in unmeasured(best, {1: many})
    assert "metric 10" not in unmeasured(best, {1: many})
