# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import shutil

import numpy as np
import orbax.checkpoint as v0
import pytest

from dovetail_checkpoint import Store, inspect, load, step_names, verify


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
    assert step_names.directories(tmp_path) == {12: tmp_path / name}
    assert step_names.number(tmp_path / name) == 12


@pytest.mark.parametrize(
    "name", ["7.dovetail-damaged-0", "7.orbax-checkpoint-tmp-12", "x7", "seven", "7.5", "x_7.tmp"]
)
def test_other_names_are_no_steps(tmp_path, name):
    assert step_names.number(committed(tmp_path / name)) is None
    assert step_names.directories(tmp_path) == {}


def test_a_name_of_orbax_without_a_checkpoint_is_no_step(tmp_path):
    (tmp_path / "epoch_3").mkdir()
    (tmp_path / "007").mkdir()
    (tmp_path / "5").write_text("a file")
    assert step_names.directories(tmp_path) == {}
    assert step_names.directories(tmp_path / "none") == {}


def test_steps_are_sorted_by_number_and_the_plain_name_goes_first(tmp_path):
    for name in ("ckpt_9", "ckpt_10", "10", "2"):
        committed(tmp_path / name)
    assert list(step_names.directories(tmp_path).items()) == [
        (2, tmp_path / "2"),
        (9, tmp_path / "ckpt_9"),
        (10, tmp_path / "10"),
    ]


def test_two_prefixes_in_one_root_are_refused(tmp_path):
    committed(tmp_path / "a_3")
    committed(tmp_path / "b_3")
    with pytest.raises(ValueError, match=r"different numbers, got a_3 and b_3 in .*; move those"):
        step_names.directories(tmp_path)


def test_lone_checkpoints_side_by_side_are_no_run(tmp_path, caplog):
    for name in ("full_3", "lora_3"):
        with Store(tmp_path / "run") as store:
            store.save(3, model=np.ones(2))
        (tmp_path / "run" / "3").rename(tmp_path / name)
        shutil.rmtree(tmp_path / "run")
    assert step_names.listed(tmp_path) == [(3, tmp_path / "full_3"), (3, tmp_path / "lora_3")]
    for name in ("full_3", "lora_3"):
        np.testing.assert_array_equal(load(tmp_path / name, np.zeros(2)), np.ones(2))
        assert (inspect(tmp_path / name).step.step, inspect(tmp_path / name).misplaced) == (3, None)
        assert verify(tmp_path / name).steps[0].verified
    assert not caplog.records
    with pytest.raises(ValueError, match="different numbers, got full_3 and lora_3"):
        Store(tmp_path).restore(model=np.ones(2))
