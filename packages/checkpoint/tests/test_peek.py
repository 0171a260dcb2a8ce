# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Store.peek`: the state of one object, before and without the arrays of its step."""

import jax.numpy as jnp
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import Store
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.run import reading


class Told:
    def __init__(self, **state):
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


@pytest.fixture
def root(tmp_path):
    with Store(tmp_path) as store:
        for step in (1, 2):
            store.save(step, item={"w": jnp.full((3, 5), step)}, told=Told(step=step))
    return tmp_path


def test_the_newest_state_is_read_without_a_hash_or_an_array(root, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it must not be read")

    monkeypatch.setattr(checksums, "check", never)
    monkeypatch.setattr(reading._compat, "load", never)
    assert Store(root).peek("told") == (2, {"step": 2})
    assert Store(root).peek("item") == (2, None)
    assert Store(root).peek("nothing") == (2, None)


def test_a_save_under_way_is_awaited(tmp_path):
    with Store(tmp_path) as store:
        assert store.peek("told") is None
        store.save(7, told=Told(a=[1, 2]))
        assert store.peek("told") == (7, {"a": [1, 2]})


@pytest.mark.parametrize("name", ["told", "dovetail"])
def test_a_step_with_a_damaged_state_or_manifest_is_passed_over(root, name):
    path = root / "2" / name / "data.json"
    path.write_text(path.read_text().replace("2", "3"))
    assert Store(root).peek("told") == (1, {"step": 1})
    path = root / "1" / "told" / "data.json"
    path.write_text("{")
    assert Store(root).peek("told") is None


def test_a_step_in_the_place_of_another_is_passed_over(root):
    (root / "1").rename(root / "3")
    assert Store(root).peek("told") == (2, {"step": 2})


def test_a_step_of_plain_orbax_has_its_documents(tmp_path):
    with ocp.training.Checkpointer(tmp_path) as orbax:
        orbax.save_checkpointables(4, {"item": {"w": jnp.ones(3)}})
    assert Store(tmp_path).peek("told") == (4, None)
