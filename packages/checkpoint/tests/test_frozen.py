# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_checkpoint import Store, WithoutFrozen, inspect

PLACE = {"item": "train", "name": "frozen"}
TREE = {
    "a": np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32),
    "b": np.random.default_rng(1).normal(size=(7,)).astype(ml_dtypes.bfloat16),
    "c": np.arange(-4, 4, dtype=np.int8).reshape(2, 4),
}


def _state(tree):
    return {"step": jnp.int32(4), "frozen": jax.tree.map(jnp.asarray, tree), "opt": jnp.ones(2)}


def _target(tree):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), _state(tree)
    )


@pytest.fixture
def saved(tmp_path):
    with Store(tmp_path) as store:
        front = WithoutFrozen(store, TREE, **PLACE)
        assert front.restore(params={"w": jnp.ones(3)}, train=_target(TREE)) is None
        front.save(4, params={"w": jnp.arange(3.0)}, train=_state(TREE))
        front.wait()
    return tmp_path


@pytest.mark.capability("checkpoints without frozen parameters")
def test_a_checkpoint_lacks_what_is_frozen_and_a_restore_has_it(saved):
    trees = {
        tree.item: sorted(leaf.name for leaf in tree.leaves) for tree in inspect(saved / "4").trees
    }
    assert trees == {"params": ["w"], "train": ["frozen_digest", "opt", "step"]}
    with Store(saved) as store:
        front = WithoutFrozen(store, TREE, **PLACE)
        step, items = front.restore(params={"w": jnp.ones(3)}, train=_target(TREE))
    assert step == 4
    assert items["train"].keys() == {"step", "frozen", "opt"}
    np.testing.assert_array_equal(items["params"]["w"], [0, 1, 2])
    jax.tree.map(np.testing.assert_array_equal, items["train"]["frozen"], TREE)


def test_other_frozen_parameters_are_refused_and_named(saved):
    other = {**TREE, "b": TREE["b"][::-1].copy()}
    with Store(saved) as store:
        front = WithoutFrozen(store, other, **PLACE)
        with pytest.raises(ValueError, match="others in 1 of 3 since step 4, first b: put back"):
            front.restore(params={"w": jnp.ones(3)}, train=_target(other))


@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec()])
def test_frozen_parameters_are_restored_onto_a_mesh(tmp_path, spec):
    place = NamedSharding(jax.make_mesh((2,), ("x",)), spec)
    frozen = np.arange(6, dtype=np.float32)
    state = {"base": jax.device_put(frozen, place), "lora": jax.device_put(np.ones(4), place)}
    with Store(tmp_path) as store:
        front = WithoutFrozen(store, frozen, item="model", name="base")
        front.save(1, model=state)
        assert front.peek("data") == (1, None)
        front.wait()
        resumed = WithoutFrozen(store, frozen, item="model", name="base")
        _, items = resumed.restore(model=state)
        resumed.save(2, model=items["model"])
    base = items["model"]["base"]
    assert base.sharding == place
    np.testing.assert_array_equal(base, frozen)
