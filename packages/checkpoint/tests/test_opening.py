# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest

from dovetail_checkpoint import Store, convert, diff, explain, load, verify
from dovetail_checkpoint.opening import is_safetensors, open_source


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
