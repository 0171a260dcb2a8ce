# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gc
import html
import shutil

import jax
import numpy as np
import orbax.checkpoint as v0
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import DamageError, Store, digest, inspect
from dovetail_checkpoint.paths.export import export_safetensors
from dovetail_checkpoint.paths.metadata import Checkpoint, Run, table

# TensorStore may answer after Orbax gave up, even during the next test.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
]


def model():
    rng = np.random.default_rng(5)
    return {
        "layers": [{"w": rng.normal(size=(3, 5)).astype(np.float32)}],
        "key": jax.random.key(2),
        "step": 7,
        "none": np.zeros((0, 2), np.int8),
    }


def plain():
    """What plain Orbax can save: no array without elements."""
    return {name: leaf for name, leaf in model().items() if name != "none"}


class Position:
    def get_state(self):
        return {"row": 3}

    def set_state(self, state):
        del state


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Step 3 has a tree and an object, 12 another tree beside them; every data file is gone."""
    root = tmp_path_factory.mktemp("run") / "run"
    with Store(root) as store:
        store.save(3, model=model(), data=Position())
    with Store(root, checksums=False) as store:
        store.save(
            12,
            metrics={"loss": 0.25, "rows": 3},
            model=model(),
            train={"m": np.ones(4)},
            data=Position(),
        )
    delete_data(root)
    return root


def delete_data(root):
    """Deletes what TensorStore wrote: the arrays, and the B-trees that say where they lie."""
    gone = [path for path in root.rglob("*") if path.is_dir() and path.name == "d"]
    assert gone
    for path in gone:
        shutil.rmtree(path)
    for path in root.rglob("manifest.ocdbt"):
        path.unlink()


def hex_digest(leaf):
    x, y = digest({"x": leaf})["x"]
    return f"{int(x):08x}{int(y):08x}"


@pytest.mark.thorough
def test_a_run_is_its_steps(run):
    found = inspect(run)
    assert isinstance(found, Run)
    assert [(x.step, x.items, x.has_checksums) for x in found.steps] == [
        (3, ("data", "model"), True),
        (12, ("data", "model", "train"), False),
    ]
    assert found.steps[0].bytes == sum(
        path.stat().st_size for path in (run / "3").rglob("*") if path.is_file()
    )


def test_a_step_is_its_leaves_and_objects_and_no_data_file_is_opened(run):
    found = inspect(run / "3")
    assert isinstance(found, Checkpoint)
    assert (found.writer, found.step) == ("dovetail", inspect(run).steps[0])
    (tree,) = found.trees
    assert tree.item == "model"
    want = model()
    assert [(leaf.name, leaf.dtype, leaf.shape, leaf.digest) for leaf in tree.leaves] == [
        ("key", "key<fry>", (), hex_digest(want["key"])),
        ("layers.0.w", "float32", (3, 5), hex_digest(want["layers"][0]["w"])),
        ("none", "int8", (0, 2), "0" * 16),
        ("step", "python int", (), hex_digest(7)),
    ]
    assert tree.bytes == 3 * 5 * 4 + 0 + 8 + 8
    (state,) = found.objects
    assert (state.item, state.kind) == ("data", "shared")
    assert len(state.sha256) == 64


def test_one_item_by_option_or_by_path(run):
    assert [tree.item for tree in inspect(run / "12", item="train").trees] == ["train"]
    assert inspect(run / "12", item="train").objects == ()
    assert inspect(run / "12" / "train") == inspect(run / "12", item="train")
    assert inspect(run / "12", item="data").trees == ()
    assert [state.item for state in inspect(run / "12", item="data").objects] == ["data"]


def test_what_it_says(run):
    w = hex_digest(model()["layers"][0]["w"])
    key = hex_digest(model()["key"])
    size = inspect(run).steps[0].bytes
    sha256, named = inspect(run / "3").objects[0].sha256, inspect(run / "3").identity.run
    assert str(inspect(run / "3")) == "\n".join(
        [
            f"{run / '3'}: written by dovetail as step 3 of run {named}, step 3, data, model, "
            f"{size} bytes, checksums",
            "model: 4 leaves, 76 bytes",
            f"  key         key<fry>[]     {key}",
            f"  layers.0.w  float32[3, 5]  {w}",
            "  none        int8[0, 2]     0000000000000000",
            f"  step        python int[]   {hex_digest(7)}",
            f"data: state of an object, shared, sha256 {sha256}",
        ]
    )
    step, steps = inspect(run / "3"), inspect(run)
    assert repr(step) == f"Checkpoint({str(run / '3')!r}: model, data; print it)"
    assert repr(step.trees[0]) == "TreeContents(model: 4 leaves, 76 bytes; print it)"
    assert repr(steps) == f"Run({str(run)!r}: 2 steps; print it)"
    for shown in (step, steps):
        assert html.unescape(shown._repr_html_()) == f"<pre>{shown}</pre>"
    first, second = str(steps).splitlines()[1:]
    assert first.split("  ")[0] == "step 3"
    assert second.endswith("bytes  no checksums  loss=0.25, rows=3")
    assert str(inspect(run / "12")).splitlines()[0].endswith(", no checksums, loss=0.25, rows=3")


def test_plain_orbax_has_names_and_no_digests(tmp_path):
    ocp.save_checkpointables(str(tmp_path / "5"), {"model": plain(), "meta": {"name": "x"}})
    v0.PyTreeCheckpointer().save(tmp_path / "v0", {"a": np.ones((2, 3)), "b": [np.ones(4)]})
    found = inspect(tmp_path / "5", item="model")
    assert found.writer == "orbax"
    assert [(leaf.name, leaf.shape, leaf.digest) for leaf in found.trees[0].leaves] == [
        ("key", (), None),
        ("layers.0.w", (3, 5), None),
        ("step", (), None),
    ]
    found = inspect(tmp_path / "v0")
    assert (found.step, found.objects, found.trees[0].item) == (None, (), None)
    assert [leaf.name for leaf in found.trees[0].leaves] == ["a", "b.0"]
    assert "  a    float64[2, 3]  no digest" in str(found)


# Orbax leaves tasks behind when a read fails; they are collected here, and not in a later test.
@pytest.mark.thorough
def test_plain_orbax_whose_database_is_lost_is_damage_not_an_empty_tree(tmp_path):
    ocp.save_checkpointables(str(tmp_path / "5"), {"model": plain()})
    delete_data(tmp_path / "5")
    with pytest.raises(DamageError, match=r"model: its metadata cannot be read .*logs why"):
        inspect(tmp_path / "5")
    gc.collect()


def test_json_of_plain_orbax_is_told(tmp_path):
    with v0.CheckpointManager(tmp_path) as manager:
        items = {"model": v0.args.StandardSave(plain()), "meta": v0.args.JsonSave({"a": 1})}
        manager.save(5, args=v0.args.Composite(**items))
    (state,) = inspect(tmp_path / "5").objects
    assert (state.item, state.kind, state.sha256) == ("meta", "json", None)
    assert str(state) == "meta: state of an object, json, sha256 unknown"


def test_a_numbered_tree_of_orbax_v0_is_a_step_without_items(tmp_path):
    v0.PyTreeCheckpointer().save(tmp_path / "7", {"a": np.ones(2)})
    assert [(x.step, x.items) for x in inspect(tmp_path).steps] == [(7, ())]
    assert [leaf.name for leaf in inspect(tmp_path / "7").trees[0].leaves] == ["a"]
    assert "step 7  no item" in str(inspect(tmp_path))


def test_safetensors_with_and_without_proof(run, tmp_path):
    from safetensors.numpy import save_file

    want = {"a.w": np.ones((2, 3), np.float32)}
    save_file(want, tmp_path / "model.safetensors")
    found = inspect(tmp_path / "model.safetensors")
    assert (found.writer, found.step) == ("safetensors", None)
    export_safetensors(tmp_path, tmp_path / "ours")
    found = inspect(tmp_path / "ours")
    assert found.writer == "dovetail"
    (leaf,) = found.trees[0].leaves
    assert (leaf.name, leaf.shape, leaf.digest) == ("a.w", (2, 3), hex_digest(want["a.w"]))


def test_what_is_not_there_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"be a checkpoint, got path=.*/none.*; give an existing"):
        inspect(tmp_path / "none")
    with pytest.raises(ValueError, match=r"one of \['model', 'data'\] in .*, got item='x'; give"):
        inspect(run / "3", item="x")
    with pytest.raises(ValueError, match=r"one of a step, got item='model' for the run .*.12"):
        inspect(run, item="model")


def test_a_damaged_manifest_is_damage(run, tmp_path):
    shutil.copytree(run / "3", tmp_path / "3")
    path = tmp_path / "3" / "dovetail" / "data.json"
    path.write_bytes(path.read_bytes().replace(b"layers", b"lavers"))
    with pytest.raises(DamageError, match="dovetail: the manifest cannot be read") as raised:
        inspect(tmp_path / "3")
    assert len(raised.value.problems) == 1  # no file is hashed to find others
    assert [step.step for step in inspect(tmp_path).steps] == [3]


def test_columns_are_aligned_without_spaces_at_the_end():
    assert table([("a", "bb", "c"), ("dd", "e", "")]) == ["a   bb  c", "dd  e"]
    assert table([]) == []
