# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import shutil

import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest
from safetensors.numpy import load_file, save_file

from dovetail_checkpoint import (
    DamageError,
    Store,
    cast,
    diff,
    drop,
    rename,
    stack,
    transpose,
    unstack,
)
from dovetail_checkpoint.paths.diff import Diff
from dovetail_checkpoint.paths.export import export_safetensors

STACK = [stack("layers.#.**", "layers.**")]


def model(seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "embed": normal(7, 4),
        "layers": [{"w": normal(4, 5), "b": normal(5)} for _ in range(3)],
        "step": 3,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Steps 1 and 2 differ in one element; 3 in names, a shape and a dtype; 4 is another model."""
    root = tmp_path_factory.mktemp("run") / "run"
    second, third = model(), model()
    second["layers"][1]["w"][2, 3] += 1
    third["new"] = third.pop("embed")
    third["layers"][0]["b"] = third["layers"][0]["b"][None]
    third["step"] = np.int32(3)
    with Store(root) as store:
        store.save(1, model=model(), other={"x": np.ones(2)})
        store.save(2, model=second, other={"x": np.ones(2)})
        store.save(3, model=third)
    return root


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The model of step 1 by plain Orbax, without digests."""
    path = tmp_path_factory.mktemp("plain") / "5"
    ocp.save_checkpointables(str(path), {"model": model()})
    return path


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The model of step 1 as safetensors with digests, stacked."""
    path = tmp_path_factory.mktemp("exported") / "hf"
    export_safetensors(run / "1", path, item="model", rules=[*STACK, drop("step")])
    return path


@pytest.mark.thorough
def test_one_changed_element_is_found_by_digests_alone(run, tmp_path):
    for step in "12":  # only the manifests are left
        shutil.copytree(run / step, tmp_path / step)
        for path in (tmp_path / step).rglob("*"):
            if path.is_file() and path.parent.name == "d":
                path.unlink()
    found = diff(tmp_path / "1", tmp_path / "2", item="model")
    assert [change.left.name for change in found.changed] == ["layers.1.w"]
    (change,) = found.changed
    assert change.left.digest != change.right.digest
    assert (found.equal, found.read_leaves, found.read_bytes) == (7, 0, 0)
    assert (found.only_left, found.only_right, found.retyped) == ((), (), ())
    assert not found.same


def test_a_step_is_the_same_as_itself(run):
    found = diff(run / "1", run / "1", item="other")
    assert found == Diff(
        only_left=(),
        only_right=(),
        retyped=(),
        changed=(),
        equal=1,
        read_leaves=0,
        read_bytes=0,
    )
    assert found.same
    assert repr(found) == "Diff(1 equal; read no array)"
    assert str(found) == "1 equal; read no array"


def test_names_shapes_and_dtypes(run):
    found = diff(run / "1" / "model", run / "3")
    assert (found.only_left, found.only_right) == (("embed",), ("new",))
    assert [str(change) for change in found.retyped] == [
        "layers.0.b: float32[5], float32[1, 5]",
        "step: python int[], int32[]",
    ]
    assert found.changed == ()
    assert repr(found) == f"Diff({str(found).splitlines()[-1]}; print it)"
    assert str(found) == "\n".join(
        [
            "- embed",
            "+ new",
            "~ layers.0.b: float32[5], float32[1, 5]",
            "~ step: python int[], int32[]",
            "5 equal, 1 only left, 1 only right, 2 of another dtype or shape; read no array",
        ]
    )


def test_rules_that_rename_read_nothing(run):
    found = diff(run / "1", run / "3", item="model", rules=[rename("embed", "new"), drop("step")])
    assert (found.only_left, found.only_right, found.read_leaves) == ((), ("step",), 0)
    assert len(found.retyped) == 1


@pytest.mark.parametrize("swapped", [False, True])
def test_leaves_without_digests_are_read_on_their_side_alone(run, plain, swapped):
    sides = [plain, run / "1"] if swapped else [run / "1", plain]
    found = diff(*sides, item="model")
    assert found.same
    assert (found.equal, found.read_leaves) == (8, 8)
    assert found.read_bytes == 4 * (7 * 4 + 3 * (4 * 5 + 5)) + 8


def test_one_changed_element_is_found_without_digests(run, plain):
    found = diff(run / "2", plain, item="model")
    assert [change.left.name for change in found.changed] == ["layers.1.w"]
    found = diff(plain, plain, item="model")
    assert (found.same, found.read_leaves) == (True, 16)


def test_across_formats_by_rules(run, exported):
    rules = [*STACK, drop("step")]
    found = diff(run / "1", exported, item="model", rules=rules)
    assert found.same
    assert (found.equal, found.read_leaves) == (3, 6)  # the embedding has its digest
    found = diff(run / "2", exported, item="model", rules=rules)
    assert [change.left.name for change in found.changed] == ["layers.w"]
    back = [unstack("layers.**", "layers.#.**")]
    found = diff(exported, run / "1", item="model", rules=back)
    assert (found.only_right, found.equal, found.changed) == (("step",), 7, ())
    assert found.read_leaves == 2


def test_foreign_safetensors(exported, tmp_path):
    tensors = load_file(exported / "model.safetensors")
    save_file(tensors, tmp_path / "a.safetensors")
    found = diff(tmp_path / "a.safetensors", exported)
    assert (found.same, found.read_leaves) == (True, 3)
    tensors["embed"][6, 3] = np.nextafter(tensors["embed"][6, 3], np.float32(9))
    save_file(tensors, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert [change.left.name for change in found.changed] == ["embed"]


def test_rules_change_bits(run):
    turned = diff(run / "1", run / "1", item="model", rules=[transpose("embed", (1, 0))])
    assert [str(change) for change in turned.retyped] == ["embed: float32[4, 7], float32[7, 4]"]
    assert turned.read_leaves == 0  # another shape needs no bits to differ
    rounded = [cast("embed", "bfloat16"), cast("embed", "float32")]
    found = diff(run / "1", run / "1", item="model", rules=rounded)
    assert [change.left.name for change in found.changed] == ["embed"]
    assert found.read_leaves == 1


def test_progress_goes_to_the_bytes_that_are_read(run, plain):
    told = []
    found = diff(run / "1", plain, item="model", progress=lambda *x: told.append(x))
    assert told[0] == (0, found.read_bytes)
    assert told[-1] == (found.read_bytes, found.read_bytes)
    told.clear()
    diff(run / "1", run / "2", item="model", progress=lambda *x: told.append(x))
    assert told == []


def test_what_is_read_is_proven(run, exported, tmp_path):
    path = shutil.copytree(exported, tmp_path / "hf") / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match=r"layers.w"):
        diff(tmp_path / "hf", run / "1", item="model", rules=[unstack("layers.**", "layers.#.**")])


def test_an_item_must_be_said_where_it_is_needed_and_only_there(run, exported):
    with pytest.raises(
        ValueError, match=r"which of \['model', 'other'\] .*, got item=None; give item='model'"
    ):
        diff(run / "1", exported)
    with pytest.raises(ValueError, match=r"a tree of a step, got item='model' .*; leave item out"):
        diff(exported, run / "1" / "model", item="model")
