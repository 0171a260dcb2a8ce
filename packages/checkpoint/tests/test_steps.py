# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps on disk: their names, and directories that are renamed, copied, swapped, linked or old."""

import json
import os
import random
import shutil

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as v0
import pytest

from dovetail_checkpoint import Retention, Store, diff, inspect, load, verify
from dovetail_checkpoint.cli import main
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.proof.manifest import Identity, json_sha256
from dovetail_checkpoint.run.steps import (
    RUN_FILE,
    begin_run,
    identity_of,
    identity_problems,
    is_ours,
    run_of_root,
    step_directories,
    step_number,
    step_paths,
)

STEPS = (10, 20, 30)


def model(step):
    return {"w": jnp.asarray(np.random.default_rng(step).normal(size=(3, 5)), jnp.float32)}


def write(root, steps=STEPS):
    with Store(root) as store:
        for step in steps:
            store.save(step, model=model(step))
    return root


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run") / "other")


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def restored(root):
    """The step restored, whose values must be its own, and the report."""
    store = Store(root)
    step, items = store.restore(model=model(0))
    np.testing.assert_array_equal(items["model"]["w"], model(step)["w"])
    return step, store.report


def rename(run, other, draw):
    target = draw.choice([5, 25, 40])
    (run / "30").rename(run / str(target))
    return {target}


def copy(run, other, draw):
    target = draw.choice([5, 40, 41])
    shutil.copytree(run / str(draw.choice(STEPS)), run / str(target))
    return {target}


def swap(run, other, draw):
    one, two = draw.sample(STEPS, 2)
    (run / str(one)).rename(run / "away")
    (run / str(two)).rename(run / str(one))
    (run / "away").rename(run / str(two))
    return {one, two}


def link(run, other, draw):
    target = draw.choice([5, 40, 41])
    (run / str(target)).symlink_to(draw.choice([run, other]) / str(draw.choice(STEPS)))
    return {target}


def replace(run, other, draw):
    """The same step of another run."""
    step = draw.choice(STEPS)
    shutil.rmtree(run / str(step))
    shutil.copytree(other / str(step), run / str(step))
    return {step}


FAULTS = [rename, copy, swap, link, replace]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_a_step_under_another_name_is_refused_by_name(run, other, seed):
    wrong = FAULTS[seed % len(FAULTS)](run, other, random.Random(seed))
    good = {int(path.name) for path in run.iterdir() if path.name.isdigit()} - wrong
    step, report = restored(run)
    assert step == max(good)
    tried = {x.step: x for x in report.steps}
    assert {s for s, x in tried.items() if x.problems} == {s for s in wrong if s > step}
    for number, problem in ((s, tried[s].problems[0]) for s in wrong & tried.keys()):
        assert problem.where == "identity"
        assert str(tried[number]).startswith(f"step {number} is refused: identity: its manifest")
    checked = {x.step: bool(x.problems) for x in verify(run).steps}
    assert checked == dict.fromkeys(good, False) | dict.fromkeys(wrong, True)
    assert {step.step for step in inspect(run).steps if step.misplaced} == wrong


@pytest.mark.thorough
def test_every_reader_says_so(run, capsys, caplog):
    shutil.copytree(run / "20", run / "40")
    assert main(["verify", str(run)]) == 3
    assert main(["verify", str(run / "40")]) == 3
    said = capsys.readouterr().out
    assert said.count(f"{run}/40: refused\n  identity: its manifest says step 20: ") == 2
    assert main(["inspect", str(run)]) == 0
    assert "misplaced: its manifest says step 20" in capsys.readouterr().out.splitlines()[-1]
    assert main(["inspect", str(run / "40")]) == 0
    assert "written by dovetail as step 20 of run " in (said := capsys.readouterr().out)
    assert "\nmisplaced: its manifest says step 20" in said
    assert main(["diff", str(run / "20"), str(run / "40")]) == 0
    assert capsys.readouterr().out.startswith(f"{run}/40: its manifest says step 20")
    assert diff(run / "20", run / "20").notes == ()
    caplog.clear()
    np.testing.assert_array_equal(load(run / "40", model(0))["w"], model(20)["w"])
    assert "its manifest says step 20" in caplog.text


def test_a_step_copied_out_of_its_run_is_read_by_path(run, tmp_path, caplog):
    best = shutil.copytree(run / "20", tmp_path / "best")
    np.testing.assert_array_equal(load(best, model(0))["w"], model(20)["w"])
    assert str(verify(best)) == "best is verified"
    assert inspect(best).identity == inspect(run / "20").identity
    assert inspect(best).misplaced is None
    assert not caplog.records


def test_a_run_keeps_its_identity_and_another_run_has_another(run, other):
    write(run, [40])
    runs = {step.identity.run for step in inspect(run).steps}
    assert len(runs) == 1
    assert runs.isdisjoint(step.identity.run for step in inspect(other).steps)
    assert [step.identity.step for step in inspect(run).steps] == [20, 30, 40]


def test_a_copied_root_is_the_same_run(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "copied")
    write(copied, [40])
    assert {s.identity.run for s in inspect(copied).steps} == {inspect(run / "30").identity.run}


def test_a_fork_into_a_new_root_is_a_run_of_its_own(run, tmp_path):
    step, items = Store(run).restore(model=model(0))
    with Store(tmp_path / "fork") as store:
        store.save(step, **items)
    assert inspect(tmp_path / "fork" / "30").identity.run != inspect(run / "30").identity.run
    assert restored(tmp_path / "fork")[0] == 30


def test_without_its_file_a_run_is_that_of_most_steps(run, other):
    (run / RUN_FILE).unlink()
    named = inspect(run / "30").identity.run
    shutil.rmtree(run / "30")
    shutil.copytree(other / "30", run / "30")
    step, report = restored(run)
    assert step == 20
    assert "says run" in str(report)
    write(run, [40])
    assert json.loads((run / RUN_FILE).read_text())["run"] == named
    assert restored(run)[0] == 40


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": "ab", "sha256": "cd"}', "[" * 5000])
def test_a_damaged_file_of_the_run_is_reported_and_written_again(run, content, caplog):
    whole = (run / RUN_FILE).read_text()
    (run / RUN_FILE).write_text(content)
    step, report = restored(run)
    assert step == 30
    assert str(report).startswith(RUN_FILE)
    assert main(["verify", str(run)]) == 3
    write(run, [40])
    assert "it is written again" in caplog.text
    assert (run / RUN_FILE).read_text() == whole


@pytest.mark.thorough
def test_every_flip_in_the_file_of_a_run_is_a_problem(tmp_path):
    named = begin_run(tmp_path)
    path = tmp_path / RUN_FILE
    whole = path.read_bytes()
    assert run_of_root(tmp_path) == (named, [])
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        run, (problem,) = run_of_root(tmp_path)
        assert (run, problem.where) == (None, RUN_FILE)


def without_identity(step):
    """The step as a version before there was an identity wrote it."""
    path = step / "dovetail" / "data.json"
    document = json.loads(path.read_text())
    body = {key: x for key, x in document.items() if key not in ("step", "run", "sha256")}
    path.write_text(json.dumps({**body, "sha256": json_sha256(body)}))
    (step / checksums.SHA256SUMS).unlink()
    checksums.write(step)


@pytest.mark.thorough
def test_steps_of_older_versions_are_restored_and_the_report_says_so(run):
    for step in STEPS:
        without_identity(run / str(step))
    (run / RUN_FILE).unlink()
    step, report = restored(run)
    assert step == 30
    assert report.steps[0].verified
    assert str(report) == "step 30 is verified, except for its number: an older version wrote it"
    assert str(verify(run)).count("an older version wrote it") == 3
    assert inspect(run / "30").identity is None
    write(run, [40])
    assert str(restored(run)[1]) == "step 40 is verified"


def test_a_misplaced_step_does_not_count_as_good(run):
    for target in (41, 42, 43):
        shutil.copytree(run / "10", run / str(target))
    with Store(run, retention=Retention(latest=2)) as store:
        store.save(35, model=model(35))
    assert sorted(os.listdir(run)) == ["30", "35", "41", "42", "43", RUN_FILE]


def test_a_misplaced_step_makes_room_for_its_number(run, caplog):
    shutil.copytree(run / "30", run / "40")
    write(run, [40])
    assert restored(run)[0] == 40
    assert (run / "40.dovetail-damaged-0").is_dir()
    assert "step 40" in caplog.text


def test_an_item_that_the_manifest_does_not_state_is_a_problem(run):
    shutil.copytree(run / "30" / "model", run / "30" / "extra")
    path = run / "30" / "_CHECKPOINT_METADATA"
    document = json.loads(path.read_text())
    document["item_handlers"]["extra"] = document["item_handlers"]["model"]
    path.write_text(json.dumps(document))
    (run / "30" / checksums.SHA256SUMS).unlink()
    step, report = restored(run)
    assert step == 20
    assert "_CHECKPOINT_METADATA: Orbax lists the items ['extra']" in str(report)


def test_an_identity_names_step_and_run(run):
    stated = identity_of(run / "30")
    assert stated == Identity(step=30, run=run_of_root(run)[0])
    assert identity_problems(run / "30", stated, None) == []
    assert identity_problems(run / "30", stated, stated.run) == []
    assert identity_problems(run / "30", None, stated.run) == []
    (problem,) = identity_problems(run / "30", stated, "f" * 32)
    assert f"run {stated.run}, but the run here is {'f' * 32}" in problem.reason


def test_what_is_ours_is_known_by_any_of_its_files(run, tmp_path):
    for lost in ("dovetail", checksums.SHA256SUMS, "_CHECKPOINT_METADATA"):
        step = shutil.copytree(run / "30", tmp_path / lost)
        shutil.rmtree(step / lost) if (step / lost).is_dir() else (step / lost).unlink()
        assert is_ours(step)
    (tmp_path / "5").mkdir()
    assert not is_ours(tmp_path / "5")


def committed(path):
    """A directory with the file that Orbax writes into a committed step."""
    path.mkdir(parents=True)
    (path / "_CHECKPOINT_METADATA").write_text("{}")
    return path


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "12"),
        ({"step_prefix": "ckpt"}, "ckpt_12"),
        ({"step_format_fixed_length": 5}, "00012"),
        ({"step_prefix": "a_b", "step_format_fixed_length": 5}, "a_b_00012"),
    ],
)
def test_the_names_that_orbax_makes_are_steps(tmp_path, options, name):
    with v0.CheckpointManager(tmp_path, options=v0.CheckpointManagerOptions(**options)) as manager:
        manager.save(12, args=v0.args.Composite(meta=v0.args.JsonSave({"a": 1})))
    assert step_directories(tmp_path) == {12: tmp_path / name}
    assert step_number(tmp_path / name) == 12


@pytest.mark.parametrize(
    "name", ["7.dovetail-damaged-0", "7.orbax-checkpoint-tmp-12", "x7", "seven", "7.5", "x_7.tmp"]
)
def test_other_names_are_no_steps(tmp_path, name):
    assert step_number(committed(tmp_path / name)) is None
    assert step_directories(tmp_path) == {}


def test_a_name_of_orbax_without_a_checkpoint_is_no_step(tmp_path):
    (tmp_path / "epoch_3").mkdir()
    (tmp_path / "007").mkdir()
    (tmp_path / "5").write_text("a file")
    assert step_directories(tmp_path) == {}
    assert step_directories(tmp_path / "none") == {}


def test_steps_are_sorted_by_number_and_the_plain_name_goes_first(tmp_path):
    for name in ("ckpt_9", "ckpt_10", "10", "2"):
        committed(tmp_path / name)
    assert list(step_directories(tmp_path).items()) == [
        (2, tmp_path / "2"),
        (9, tmp_path / "ckpt_9"),
        (10, tmp_path / "10"),
    ]


def test_two_prefixes_in_one_root_are_refused(tmp_path):
    committed(tmp_path / "a_3")
    committed(tmp_path / "b_3")
    with pytest.raises(ValueError, match=r"different numbers, got a_3 and b_3 in .*; move those"):
        step_directories(tmp_path)


@pytest.mark.thorough
def test_lone_checkpoints_side_by_side_are_no_run(tmp_path, caplog):
    for name in ("full_3", "lora_3"):
        with Store(tmp_path / "run") as store:
            store.save(3, model=np.ones(2))
        (tmp_path / "run" / "3").rename(tmp_path / name)
        shutil.rmtree(tmp_path / "run")
    assert step_paths(tmp_path) == [(3, tmp_path / "full_3"), (3, tmp_path / "lora_3")]
    for name in ("full_3", "lora_3"):
        np.testing.assert_array_equal(load(tmp_path / name, np.zeros(2)), np.ones(2))
        assert (inspect(tmp_path / name).step.step, inspect(tmp_path / name).misplaced) == (3, None)
        assert verify(tmp_path / name).steps[0].verified
    assert not caplog.records
    with pytest.raises(ValueError, match="different numbers, got full_3 and lora_3"):
        Store(tmp_path).restore(model=np.ones(2))


@pytest.mark.parametrize(
    "name", ["a[b]", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("a*b", "a?b"))]
)
def test_a_root_that_orbax_reads_as_a_pattern_is_refused(tmp_path, name):
    with (
        Store(tmp_path / name) as store,
        pytest.raises(ValueError, match=r"must have none of .* got '.*'; rename the directory"),
    ):
        store.save(1, item=np.ones(3))
    assert not (tmp_path / name).exists()
