# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every layout that Orbax wrote: v1 and v0, composite and direct, with and without OCDBT."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as v0
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import DamageError, Store, load
from dovetail_checkpoint.paths.orbax_item import OrbaxItem


def tree():
    rng = np.random.default_rng(0)
    return {
        "layers": [{"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.bfloat16)}, {"w": jnp.ones(5)}],
        "keys": jax.random.split(jax.random.key(7), 3),
        "i": 3,
        "np": rng.normal(size=(2, 3)),
    }


def by_store(path):
    with Store(path) as store:
        store.save(1, item=tree())
    return path / "1", "item"


def by_v1(path):
    ocp.save_checkpointables(str(path), {"item": tree(), "more": {"a": 1}})
    return path, "item"


def by_v0_manager(path):
    with v0.CheckpointManager(path) as manager:
        manager.save(
            5,
            args=v0.args.Composite(
                item=v0.args.StandardSave(tree()), meta=v0.args.JsonSave({"a": 1})
            ),
        )
    return path / "5", "item"


def by_v0_direct(path):
    v0.PyTreeCheckpointer().save(path, tree())
    return path, None


def by_v0_without_ocdbt(path):
    handler = v0.PyTreeCheckpointHandler(use_ocdbt=False)
    v0.Checkpointer(handler).save(path, args=v0.args.PyTreeSave(tree()))
    return path, None


WRITERS = [by_store, by_v1, by_v0_manager, by_v0_direct, by_v0_without_ocdbt]


@pytest.fixture(scope="module", params=WRITERS, ids=lambda write: write.__name__)
def written(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("orbax") / "step")


def test_leaves_are_named_with_shape_and_dtype(written):
    path, item = written
    found = {name: (x.shape, x.dtype) for name, x in OrbaxItem(path, item).leaves.items()}
    assert found == {
        "i": ((), "python int"),
        "keys": ((3,), "key<fry>"),
        "layers.0.w": ((3, 4), "bfloat16"),
        "layers.1.w": ((5,), "float32"),
        "np": ((2, 3), "float64"),
    }


def test_leaves_are_read_to_host_and_device(written):
    path, item = written
    place = jnp.zeros(()).sharding
    found = OrbaxItem(path, item).read({"np": None, "layers.0.w": place, "i": None, "keys": place})
    want = tree()
    assert isinstance(found["layers.0.w"], jax.Array)
    assert np.asarray(found["layers.0.w"]).tobytes() == np.asarray(want["layers"][0]["w"]).tobytes()
    assert found["np"].tobytes() == want["np"].tobytes()
    assert np.array_equal(jax.random.key_data(found["keys"]), jax.random.key_data(want["keys"]))
    assert found["i"] == 3


def test_load_takes_every_layout(written, assert_same):
    path, item = written
    want = tree()
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, want
    )
    assert_same(load(path, target, item=item), want)


def test_only_what_is_named_is_opened(tmp_path):
    path, _ = by_v0_without_ocdbt(tmp_path / "step")  # one directory for each leaf
    (path / "layers.1.w" / "0").unlink()
    found = OrbaxItem(path).read({"layers.0.w": None})
    assert list(found) == ["layers.0.w"]


def test_text_is_listed_and_not_read(tmp_path):
    v0.PyTreeCheckpointer().save(tmp_path / "step", {"w": jnp.ones(2), "name": "x"})
    item = OrbaxItem(tmp_path / "step")
    assert item.leaves["name"].dtype == "python str"
    with pytest.raises(ValueError, match=r'got name: python str; drop\("name"\)'):
        item.read({"name": None})


def test_leaves_without_elements_need_no_file(tmp_path):
    with Store(tmp_path) as store:
        store.save(1, item={"empty": jnp.zeros((0, 3)), "w": jnp.ones(2)})
    item = OrbaxItem(tmp_path / "1")
    found = item.read({"empty": None})
    assert found["empty"].shape == (0, 3)


def test_names_of_nnx_states_lose_their_last_value(tmp_path):
    with Store(tmp_path) as store:
        store.save(
            1, item={"a": {"kernel": {"value": jnp.ones(2)}, "bias": {"value": jnp.ones(3)}}}
        )
    assert list(OrbaxItem(tmp_path / "1").leaves) == ["a.bias", "a.kernel"]


def test_a_damaged_manifest_is_damage(tmp_path):
    path, item = by_store(tmp_path)
    manifest = path / "dovetail" / "data.json"
    document = json.loads(manifest.read_text())
    document["trees"]["item"]["leaves"][0][3] = "0" * 16
    manifest.write_text(json.dumps(document))
    with pytest.raises(DamageError, match=r"dovetail/data\.json") as raised:
        OrbaxItem(path, item)
    assert [problem.where for problem in raised.value.problems][:1] == ["dovetail"]


def test_damaged_metadata_of_others_is_damage(tmp_path):
    path, _ = by_v0_direct(tmp_path / "step")
    (path / "_METADATA").write_text("{")
    with pytest.raises(DamageError, match="its metadata cannot be read"):
        OrbaxItem(path)
