# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_stack.recipes.frozen import WithoutFrozen

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
        front = WithoutFrozen(store, TREE)
        assert front.restore(params={"w": jnp.ones(3)}, train=_target(TREE)) is None
        front.save(4, params={"w": jnp.arange(3.0)}, train=_state(TREE))
        front.wait()
    return tmp_path


def test_a_checkpoint_lacks_what_is_frozen_and_a_restore_has_it(saved, leaves):
    assert leaves(saved / "4") == {"params": ["w"], "train": ["frozen_digest", "opt", "step"]}
    with Store(saved) as store:
        front = WithoutFrozen(store, TREE)
        step, items = front.restore(params={"w": jnp.ones(3)}, train=_target(TREE))
    assert step == 4
    assert items["train"].keys() == {"step", "frozen", "opt"}
    np.testing.assert_array_equal(items["params"]["w"], [0, 1, 2])
    jax.tree.map(np.testing.assert_array_equal, items["train"]["frozen"], TREE)


def test_other_frozen_parameters_are_refused_and_named(saved):
    other = {**TREE, "b": TREE["b"][::-1].copy()}
    with Store(saved) as store:
        front = WithoutFrozen(store, other)
        with pytest.raises(ValueError, match="others in 1 of 3 since step 4, first b: put back"):
            front.restore(params={"w": jnp.ones(3)}, train=_target(other))


def test_a_model_without_frozen_parameters_needs_no_front(tmp_path):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    with Store(tmp_path) as store:
        assert WithoutFrozen.of(model, store, trainable=nnx.Param) is store
        assert WithoutFrozen.of(model, store, trainable=nnx.LoRAParam) is not store
