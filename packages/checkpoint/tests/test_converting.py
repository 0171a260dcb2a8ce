# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as v0
import orbax.checkpoint.experimental.v1 as ocp
import pytest
from safetensors.numpy import load_file, save_file

from dovetail_checkpoint import (
    DamageError,
    Store,
    cast,
    convert,
    diff,
    drop,
    fuse,
    inspect,
    only,
    rename,
    stack,
    unstack,
    verify,
)
from dovetail_checkpoint.paths.converting import planned

STACK = [stack("layers.#.**", "layers.**")]
UNSTACK = [unstack("layers.**", "layers.#.**")]


def model():
    rng = np.random.default_rng(3)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.bfloat16)

    return {
        "embed": normal(7, 4),
        "layers": [{"w": normal(4, 5), "b": normal(5)} for _ in range(3)],
    }


def tensors():
    """The model as Hugging Face has it: float32, dots, unstacked."""
    names = {"embed": model()["embed"]}
    for i, layer in enumerate(model()["layers"]):
        names |= {f"layers.{i}.{name}": x for name, x in layer.items()}
    return {name: np.asarray(x, np.float32) for name, x in names.items()}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Safetensors that the format's own library wrote."""
    path = tmp_path_factory.mktemp("foreign")
    save_file(tensors(), path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("run") / "run"
    with Store(root) as store:
        store.save(7, params=model(), train={"key": jax.random.key(1), "step": 3, "f": 0.5})
    return root


def orbax_alone(path, item):
    return ocp.load_checkpointables(str(path))[item]


@pytest.mark.thorough
def test_safetensors_to_orbax_stacked_and_back_is_byte_identical(foreign, tmp_path):
    convert(foreign, tmp_path / "run", format="orbax", rules=STACK)
    assert str(verify(tmp_path / "run")) == "step 0 is verified"
    assert [step.items for step in inspect(tmp_path / "run").steps] == [("model",)]
    found = orbax_alone(tmp_path / "run" / "0", "model")
    want = tensors()
    assert found.keys() == {"embed", "layers"}
    for part in "wb":
        stacked = np.stack([want[f"layers.{i}.{part}"] for i in range(3)])
        np.testing.assert_array_equal(found["layers"][part], stacked)
    convert(tmp_path / "run" / "0", tmp_path / "hf", format="safetensors", rules=UNSTACK)
    back = load_file(tmp_path / "hf" / "model.safetensors")
    assert {name: x.tobytes() for name, x in back.items()} == {
        name: x.tobytes() for name, x in want.items()
    }


def test_a_step_to_safetensors_in_several_files(run, tmp_path):
    path = tmp_path / "hf"
    rules = [cast("**", "float32")]
    convert(run / "7", path, format="safetensors", item="params", rules=rules, file_bytes=150)
    files = sorted(path.glob("model-*.safetensors"))
    assert len(files) == 4  # 112 + 20, 80 + 20, 80 + 20, 80 bytes
    found = {name: x for file in files for name, x in load_file(file).items()}
    assert found.keys() == tensors().keys()
    for name, x in tensors().items():
        np.testing.assert_array_equal(found[name], x)


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["v0", "v1"])
def test_plain_orbax_of_both_versions_gains_digests(version, tmp_path):
    tree = {**model(), "key": jax.random.key(4), "n": 5, "name": "text"}
    if version == "v0":
        v0.PyTreeCheckpointer().save(tmp_path / "old", tree)
    else:
        ocp.save_checkpointables(str(tmp_path / "old"), {"params": tree})
    convert(tmp_path / "old", tmp_path / "run", format="orbax", rules=[drop("name")])
    found = inspect(tmp_path / "run" / "0").trees[0]
    assert found.item == ("model" if version == "v0" else "params")
    assert all(leaf.digest for leaf in found.leaves)
    assert diff(tmp_path / "old", tmp_path / "run" / "0", rules=[drop("name")]).same
    assert str(verify(tmp_path / "run")) == "step 0 is verified"


def test_every_kind_of_leaf_goes_from_store_to_store(run, tmp_path):
    convert(run / "7" / "train", tmp_path / "run", format="orbax", rules=[rename("f", "a.b.c")])
    found = diff(run / "7", tmp_path / "run" / "0", item="train", rules=[rename("f", "a.b.c")])
    assert (found.same, found.read_leaves) == (True, 0)
    assert [step.items for step in inspect(tmp_path / "run").steps] == [("train",)]


@pytest.mark.thorough
def test_keys_with_slashes_and_trees_of_one_leaf_survive(tmp_path):
    tree = {"a/b": {"c~": np.arange(3)}, "d": np.arange(2)}
    with Store(tmp_path / "run") as store:
        store.save(1, model=tree, one=np.arange(5))
    convert(tmp_path / "run" / "1", tmp_path / "other", format="orbax", item="model")
    assert diff(tmp_path / "run" / "1", tmp_path / "other" / "0", item="model").same
    _, items = Store(tmp_path / "other").restore(model=tree)
    np.testing.assert_array_equal(items["model"]["a/b"]["c~"], np.arange(3))
    convert(tmp_path / "run" / "1" / "one", tmp_path / "third", format="orbax")
    _, items = Store(tmp_path / "third").restore(one=np.arange(5))
    np.testing.assert_array_equal(items["one"], np.arange(5))


@pytest.mark.parametrize("format", ["orbax", "safetensors"])
def test_a_destination_that_exists_is_refused_and_unchanged(foreign, tmp_path, format):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(FileExistsError, match=r"must be new, got .*out', which is in use; give"):
        convert(foreign, tmp_path / "out", format=format)
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["mine"]


@pytest.mark.parametrize("format", ["orbax", "safetensors"])
def test_damage_leaves_nothing(foreign, tmp_path, format):
    convert(foreign, tmp_path / "hf", format="safetensors")
    path = tmp_path / "hf" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamageError, match=r"its digest is .*\n.*model.safetensors"):
        convert(tmp_path / "hf", tmp_path / "out", format=format)
    assert os.listdir(tmp_path) == ["hf"]


def test_a_failed_save_leaves_nothing(foreign, tmp_path, monkeypatch):
    def full(directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dovetail_checkpoint.proof.checksums.write", full)
    with pytest.raises(RuntimeError, match=r"must be written to .*No space left"):
        convert(foreign, tmp_path / "out", format="orbax")
    assert os.listdir(tmp_path) == []


def test_the_source_is_not_touched(run, tmp_path):
    def sums():
        files = sorted(path for path in run.rglob("*") if path.is_file())
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = sums()
    convert(run / "7", tmp_path / "out", format="orbax", item="params")
    assert sums() == before


@pytest.mark.parametrize("format", ["orbax", "safetensors"])
def test_progress_ends_at_the_bytes_of_the_leaves(foreign, tmp_path, format):
    told = []
    convert(foreign, tmp_path / "out", format=format, progress=lambda *x: told.append(x))
    total = sum(x.nbytes for x in tensors().values())
    assert told[0] == (0, total)
    assert told[-1] == (total, total)


def test_the_plan_is_what_happens_and_reads_nothing(foreign, tmp_path):
    plan = planned(foreign, format="orbax", rules=[*STACK, cast("embed", "bfloat16")])
    assert str(plan).splitlines() == [
        "embed bfloat16[7, 4] <- embed as bfloat16",
        "layers.b float32[3, 5] <- layers.0.b + layers.1.b + layers.2.b",
        "layers.w float32[3, 4, 5] <- layers.0.w + layers.1.w + layers.2.w",
        "reads 7 leaves, 412 bytes",
    ]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"format": "torch"}, r"'orbax' or 'safetensors', got format='torch'; use 'saf"),
        ({"format": "orbax", "file_bytes": 9}, r"left to safetensors, got file_bytes=9 .*leave"),
        ({"format": "orbax", "rules": [drop("**")]}, "at least one leaf, got none; leave out"),
        (
            {"format": "orbax", "rules": [rename("embed", "layers.0")]},
            r"no leaf may lie inside another .*got 'layers.0.b' beside .*; rename or drop",
        ),
        (
            {"format": "orbax", "rules": [fuse(("layers.1.b", "layers.0.b"), "layers", axis=0)]},
            r"no leaf may lie inside another .*; rename or drop",
        ),
        (
            {"format": "orbax", "rules": [rename("layers.2.w", "layers")]},
            r"no leaf may lie inside another .*got 'layers' beside .*; rename or drop",
        ),
        ({"format": "safetensors", "rules": [rename("embed", "")]}, r"a name other than ''"),
        ({"format": "orbax", "rules": [only("none")]}, r"must match a leaf, got 'none', which"),
    ],
)
def test_what_cannot_be_is_refused_before_reading(unchecked, foreign, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        planned(foreign, **options)
    with pytest.raises(ValueError, match=message):
        convert(foreign, tmp_path / "out", **options)
    assert os.listdir(tmp_path) == []


def test_texts_are_refused_with_the_rule_to_write(tmp_path):
    v0.PyTreeCheckpointer().save(tmp_path / "old", {"a": np.ones(2), "b": {"name": "x"}})
    with pytest.raises(ValueError, match=r"got the text b.name; drop\('b.name'\)"):
        planned(tmp_path / "old", format="orbax")


def test_several_processes_are_refused(foreign, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(RuntimeError, match=r"one process, got process_count=2; run it without"):
        convert(foreign, tmp_path / "out", format="orbax")
