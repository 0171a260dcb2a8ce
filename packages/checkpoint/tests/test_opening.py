# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import shutil

import jax.numpy as jnp
import pytest

from dovetail_checkpoint import (
    Store,
    convert,
    diff,
    explain,
    export_safetensors,
    inspect,
    load,
    verify,
)
from dovetail_checkpoint.cli import main
from dovetail_checkpoint.paths.opening import is_safetensors, open_source
from dovetail_checkpoint.run import reading


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    with Store(root) as store:
        store.save(3, model={"w": jnp.ones(2)})
        store.save(12, model={"w": jnp.ones(2)}, train={"m": jnp.ones(3)})
    return root


def test_a_step_is_opened_by_item_or_alone(run):
    assert list(open_source(run / "3").leaves) == ["w"]
    assert list(open_source(str(run / "12"), item="train").leaves) == ["m"]


def test_a_run_is_not_a_step(run):
    with pytest.raises(ValueError, match=r"one step, got the run .* \[3, 12\]; give .*/12"):
        open_source(run)


def test_the_item_must_be_said_and_be_there(run):
    with pytest.raises(
        ValueError, match=r"which of \['model', 'train'\] .*, got item=None; give item='model'"
    ):
        open_source(run / "12")
    with pytest.raises(
        ValueError, match=r"one of \['model', 'train'\] .*, got item='x'; give item='model'"
    ):
        open_source(run / "12", item="x")


def test_a_place_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"tree of arrays, got path=.*; give an existing run"):
        open_source(tmp_path / "nothing")


def test_safetensors_are_told_by_their_names(tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "model.safetensors").write_bytes(b"")
    (tmp_path / "none").mkdir()
    assert is_safetensors(tmp_path / "some")
    assert is_safetensors(tmp_path / "some" / "model.safetensors")
    assert not is_safetensors(tmp_path / "none")
    with pytest.raises(ValueError, match=r"hold one tree, got item='x' for .*; leave item out"):
        open_source(tmp_path / "some", item="x")


def test_a_missing_step_of_a_run_is_listed_by_every_reader(run, tmp_path):
    x = {"w": jnp.ones(2)}
    for call in (
        verify,
        lambda path: load(path, x, item="model"),
        lambda path: explain(path, x, item="model"),
        lambda path: diff(path, run / "3"),
        lambda path: diff(run / "3", path),
        lambda path: convert(path, tmp_path / "out", format="safetensors"),
    ):
        with pytest.raises(ValueError, match=r"99, which does not exist; .* the steps \[3, 12\]"):
            call(run / "99")


def _deleted_while_read(root, monkeypatch, *, before):
    """Deletes step 12 of a copy of a run once, when its manifest is read: `before`, or after."""
    read = reading.read_record

    def late(directory):
        found = None if before else read(directory)
        shutil.rmtree(root / "12", ignore_errors=True)
        return read(directory) if before else found

    monkeypatch.setattr(reading, "read_record", late)


READS = {
    "load": lambda step, out: load(step, {"w": jnp.ones(2)}, item="model"),
    "of a tree": lambda step, out: load(step / "model", {"w": jnp.ones(2)}),
    "explain": lambda step, out: explain(step, item="model"),
    "inspect": lambda step, out: inspect(step),
    "verify": lambda step, out: verify(step),
    "export": lambda step, out: export_safetensors(step, out, item="model"),
    "convert": lambda step, out: convert(step, out, format="orbax", item="model"),
    "diff": lambda step, out: diff(step.parent / "3", step, item="model"),
}


@pytest.mark.parametrize(
    "name", ["load", *(pytest.param(x, marks=pytest.mark.thorough) for x in READS if x != "load")]
)
@pytest.mark.parametrize("before", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_step_deleted_while_it_is_read_is_told_in_one_line(
    run, tmp_path, monkeypatch, name, before
):
    root = tmp_path / "run"
    shutil.copytree(run, root)
    _deleted_while_read(root, monkeypatch, before=before)
    if not before and name in ("explain", "inspect"):
        READS[name](root / "12", tmp_path / "out")  # the manifest was all that they read
        return
    with pytest.raises(
        RuntimeError,
        match=r"^a step must stay until it is read, got \S*/run/12\S*, deleted meanwhile; "
        r"\S*/run has the steps \[3\]: give \S*/run/3$",
    ):
        READS[name](root / "12", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("action", ["inspect", "verify"])
def test_the_command_tells_of_a_deleted_step_in_one_line(
    run, tmp_path, monkeypatch, capsys, action
):
    root = tmp_path / "run"
    shutil.copytree(run, root)
    _deleted_while_read(root, monkeypatch, before=True)
    assert main([action, str(root / "12")]) == 1
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 2)  # the error, and a hint of --debug
    assert "deleted meanwhile" in said.err.splitlines()[0]


def test_a_run_is_listed_and_verified_without_a_step_that_is_deleted_meanwhile(
    run, tmp_path, monkeypatch
):
    root = tmp_path / "run"
    shutil.copytree(run, root)
    _deleted_while_read(root, monkeypatch, before=True)
    assert [step.step for step in verify(root).steps] == [3]
