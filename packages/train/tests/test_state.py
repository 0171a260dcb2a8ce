# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_train import make_mesh
from dovetail_train.step.state import abstract, build, split


class _Adapted(nnx.Module):
    def __init__(self):
        self.base = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.lora = nnx.LoRA(3, 2, 4, rngs=nnx.Rngs(1))
        self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(2))

    def __call__(self, x):
        return self.norm(self.base(x) + self.lora(x))


def _built(model, tx, *, trainable, mesh):
    definition, arrays = split(model, tx, trainable=trainable, mesh=mesh)
    return build(definition, arrays)


@pytest.fixture
def mesh():
    return make_mesh(devices=jax.devices()[:1])


@pytest.mark.thorough
def test_a_module_splits_into_trained_frozen_and_rest(mesh):
    state = _built(_Adapted(), optax.adam(0.1), trainable=nnx.LoRAParam, mesh=mesh)
    assert jax.tree.map(jnp.shape, state.params) == {"lora": {"lora_a": (3, 2), "lora_b": (2, 4)}}
    assert set(state.frozen) == {"base", "norm"}
    assert set(state.rest["norm"]) == {"mean", "var"}
    assert jax.tree.map(jnp.shape, state.opt[0].mu) == jax.tree.map(jnp.shape, state.params)


def test_the_module_keeps_its_own_arrays(mesh):
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    before = np.asarray(model.kernel[...])
    state = _built(model, optax.sgd(0.1), trainable=nnx.Param, mesh=mesh)
    jax.tree.map(lambda x: x.delete(), state.params)  # as a donation would
    np.testing.assert_array_equal(model.kernel[...], before)


def test_the_state_shares_no_memory_with_arrays_of_numpy(mesh):
    """A CPU takes aligned memory as it is, and a user may write into it."""
    memory = np.zeros(48 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    values = memory[start : start + 48].view(np.float32).reshape(3, 4)
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    model.kernel = nnx.Param(values)
    state = _built(model, optax.sgd(0.1), trainable=nnx.Param, mesh=mesh)
    values[:] = 7
    assert float(jnp.abs(state.params["kernel"]).max()) == 0


def test_a_variable_may_hold_a_dict_nothing_or_keys_and_a_module_an_array(mesh):
    values = {
        "nested": {"a": None, "b": jnp.arange(3.0), "c": {}},
        "nothing": None,
        "keys": jax.random.split(jax.random.key(0, impl="rbg"), 3),
    }
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    for name, value in values.items():
        setattr(model, name, nnx.Variable(value))
    model.array = nnx.data(jnp.arange(2))
    definition, arrays = split(model, optax.sgd(0.1), trainable=nnx.Param, mesh=mesh)
    state = build(definition, arrays)
    merged = definition.merge(state.params, state.frozen, state.rest)
    for name, value in values.items():
        jax.tree.map(
            np.testing.assert_array_equal, *map(_data, (getattr(merged, name).get_value(), value))
        )
    np.testing.assert_array_equal(merged.array, [0, 1])


def _data(tree):
    return jax.tree.map(lambda x: jax.random.key_data(x) if "key" in str(x.dtype) else x, tree)


def test_the_abstract_state_is_the_state_without_its_arrays(mesh):
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.constant_schedule(0.1)))
    definition, arrays = split(_Adapted(), tx, trainable=nnx.Param, mesh=mesh)
    real, shapes = (f(definition, arrays) for f in (build, abstract))
    assert jax.tree.structure(real) == jax.tree.structure(shapes)
    for x, like in zip(jax.tree.leaves(real), jax.tree.leaves(shapes), strict=True):
        assert (x.shape, x.dtype, x.sharding) == (like.shape, like.dtype, like.sharding)
        assert not x.weak_type


def test_optimizer_leaves_inherit_the_sharding_of_their_parameter():
    mesh = jax.sharding.AbstractMesh((4,), ("fsdp",))
    model = nnx.eval_shape(lambda: nnx.Linear(512, 256, rngs=nnx.Rngs(0)))
    for tx in (optax.adamw(0.1), optax.adafactor(0.1), optax.chain(optax.trace(0.9))):
        at = split(model, tx, trainable=nnx.Param, mesh=mesh)[0].shardings
        assert at.params["kernel"].spec == PartitionSpec("fsdp")
        assert at.params["bias"].spec == PartitionSpec()
        opt = jax.eval_shape(tx.init, {"kernel": jnp.zeros((512, 256)), "bias": jnp.zeros(256)})
        for leaf, sharding in zip(jax.tree.leaves(opt), jax.tree.leaves(at.opt), strict=True):
            sharded = leaf.shape == (512, 256)
            assert sharding.spec == (PartitionSpec("fsdp") if sharded else PartitionSpec())


def test_state_of_several_arrays_for_each_parameter_lies_with_it():
    class Coded(NamedTuple):
        codes: jax.Array
        scale: jax.Array

    def init(params):
        one = jnp.zeros((), jnp.int32)
        return one, jax.tree.map(lambda x: Coded(x.astype(jnp.int8), x.max()), params)

    tx = optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))
    mesh = jax.sharding.AbstractMesh((4,), ("fsdp",))
    model = nnx.eval_shape(lambda: nnx.Linear(512, 256, rngs=nnx.Rngs(0)))
    count, moments = split(model, tx, trainable=nnx.Param, mesh=mesh)[0].shardings.opt
    assert moments["kernel"].codes.spec == PartitionSpec("fsdp")
    others = [count, moments["kernel"].scale, *moments["bias"]]
    assert all(sharding.spec == PartitionSpec() for sharding in others)


def test_who_calls_may_say_where_the_optimizer_lies():
    def everywhere(tx, params):
        mesh = params["kernel"].sharding.mesh
        whole = NamedSharding(mesh, PartitionSpec())
        return jax.tree.map(lambda _: whole, jax.eval_shape(tx.init, params))

    mesh = jax.sharding.AbstractMesh((4,), ("fsdp",))
    model = nnx.eval_shape(lambda: nnx.Linear(512, 256, rngs=nnx.Rngs(0)))
    at = split(model, optax.adam(1.0), trainable=nnx.Param, mesh=mesh, shard_opt=everywhere)[0]
    assert at.shardings.params["kernel"].spec == PartitionSpec("fsdp")
    assert at.shardings.opt[0].mu["kernel"].spec == PartitionSpec()


def test_a_transformation_may_be_made_for_where_the_parameters_lie():
    seen = []

    def make(params):
        seen.append(params)
        return optax.adam(1.0)

    mesh = jax.sharding.AbstractMesh((4,), ("fsdp",))
    model = nnx.eval_shape(lambda: nnx.Linear(512, 256, rngs=nnx.Rngs(0)))
    made, given = (
        split(model, tx, trainable=nnx.Param, mesh=mesh)[0] for tx in (make, optax.adam(1.0))
    )
    assert made.is_like(given)
    assert isinstance(made.tx, optax.GradientTransformation)
    (params,) = seen
    assert params["kernel"].shape == (512, 256)
    assert jax.tree.map(lambda x: x.sharding, params) == made.shardings.params


def test_what_only_acts_as_a_transformation_serves(mesh, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    state = _built(
        nnx.Linear(3, 4, rngs=nnx.Rngs(0)),
        optax.MultiSteps(optax.sgd(0.1), 2),
        trainable=nnx.Param,
        mesh=mesh,
    )
    assert int(state.opt.mini_step) == 0


@pytest.mark.parametrize(
    "tx, message",
    [
        (0.1, r"must be an Optax transformation.*got float; write"),
        (lambda params: None, r"got NoneType from that function; write for example optax.adamw"),
    ],
)
def test_what_is_no_transformation_is_refused(tx, message, mesh, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=message):
        split(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), tx, trainable=nnx.Param, mesh=mesh)


def test_shardings_of_another_tree_are_refused(mesh):
    with pytest.raises(ValueError, match=r"a tree like tx.init\(params\).*leave opt_shardings out"):
        split(
            nnx.Linear(3, 4, rngs=nnx.Rngs(0)),
            optax.adam(0.1),
            trainable=nnx.Param,
            mesh=mesh,
            shard_opt=lambda tx, params: (),
        )


def test_arrays_on_the_mesh_stay_where_they_are():
    mesh = jax.sharding.AbstractMesh((2, 2), ("fsdp", "tensor"))
    model = nnx.eval_shape(lambda: nnx.Linear(512, 256, rngs=nnx.Rngs(0)))
    by_name = NamedSharding(mesh, PartitionSpec(None, "tensor"))
    model.kernel = nnx.Param(jax.ShapeDtypeStruct((512, 256), jnp.float32, sharding=by_name))
    at = split(model, optax.adam(0.1), trainable=nnx.Param, mesh=mesh)[0].shardings
    assert at.params["kernel"] == by_name
    assert at.opt[0].nu["kernel"] == by_name


def test_arrays_on_another_mesh_are_refused(mesh):
    other = NamedSharding(jax.sharding.AbstractMesh((2,), ("tensor",)), PartitionSpec())
    model = nnx.eval_shape(lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    model.kernel = nnx.Param(jax.ShapeDtypeStruct((3, 4), jnp.float32, sharding=other))
    with pytest.raises(ValueError, match=r"must lie on .*'kernel' on \{'tensor': 2\}; pass that m"):
        split(model, optax.sgd(0.1), trainable=nnx.Param, mesh=mesh)


def test_trainable_that_matches_nothing_is_refused(mesh):
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"must match at least one.*LoRAParam.*Linear; pass a V"):
        split(model, optax.sgd(0.1), trainable=nnx.LoRAParam, mesh=mesh)


def test_trainable_takes_patterns(mesh):
    model = _Adapted()
    by_type = split(model, optax.sgd(0.1), trainable=nnx.LoRAParam, mesh=mesh)[1]
    by_name = split(model, optax.sgd(0.1), trainable=("**.lora_a", "**.lora_b"), mesh=mesh)[1]
    assert jax.tree.structure(by_name.params) == jax.tree.structure(by_type.params)
    assert jax.tree.structure(by_name.frozen) == jax.tree.structure(by_type.frozen)
    with pytest.raises(ValueError, match=r"must match a parameter, got 'lora_a', .* '\*\*.lora_a'"):
        split(model, optax.sgd(0.1), trainable="lora_a", mesh=mesh)


def test_a_transformation_that_changes_a_dtype_is_refused(mesh):
    tx = optax.GradientTransformation(
        lambda params: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params),
        lambda updates, state, params=None: (updates, jax.tree.map(jnp.add, updates, updates)),
    )
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(
        ValueError, match=r"must keep the dtype.*bias: bfloat16\[4\] becomes float32"
    ):
        split(model, tx, trainable=nnx.Param, mesh=mesh)


def test_a_transformation_that_changes_its_tree_is_refused(mesh):
    tx = optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, (jnp.ones(()),)))
    with pytest.raises(ValueError, match=r"must return a state of the tree.*PyTreeDef.*mend"):
        split(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), tx, trainable=nnx.Param, mesh=mesh)
