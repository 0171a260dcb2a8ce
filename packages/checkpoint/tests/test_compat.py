# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What plain Orbax makes of a step, and what Orbax's names are to us."""

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import Store, _compat

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")


@pytest.fixture
def run(tmp_path, training_state, position):
    with Store(tmp_path) as store:
        store.save(4, data=position(9), **training_state(2))
    return tmp_path


def test_plain_orbax_reads_every_item(run, training_state, position, assert_same):
    with ocp.training.Checkpointer(str(run)) as checkpointer:
        assert [info.step for info in checkpointer.checkpoints] == [4]
        found = checkpointer.load_checkpointables(4)
    assert found.keys() == {"data", "dovetail", "model", "train"}
    assert found["data"] == position(9).get_state()
    want = training_state(2)
    assert_same(found["model"], want["model"])
    np.testing.assert_array_equal(found["train"]["opt"][0]["count"], want["train"]["opt"][0].count)


def test_plain_orbax_reads_into_the_users_own_types(run, training_state, assert_same):
    want = training_state(2)
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), want
    )
    found = ocp.load_checkpointables(str(run / "4"), target)
    assert_same(found, want)


def test_names_come_without_reading_items(run):
    assert _compat.item_names(run / "4") == ["data", "dovetail", "model", "train"]


def test_a_dict_of_numbers_is_json_when_it_is_a_document(tmp_path):
    _compat.save(
        tmp_path / "1", trees={}, documents={"d": {"n": 1}}, compress=False, timeout_s=60.0
    ).result()
    assert _compat.document_path(tmp_path / "1", "d").read_text() == '{"n": 1}'
    assert _compat.load_document(tmp_path / "1", "d") == {"n": 1}
