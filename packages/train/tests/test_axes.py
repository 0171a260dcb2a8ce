# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from dovetail_train import Trainer, abstract_mesh, estimate, fsdp_shardings, lm_loss
from dovetail_train.mesh.axes import auto_mesh, check_uses, retyped
from dovetail_train.mesh.mesh import make_mesh
from dovetail_train.testing import TinyDecoder

AUTO, EXPLICIT, MANUAL = AxisType.Auto, AxisType.Explicit, AxisType.Manual


@pytest.fixture
def explicit():
    return jax.make_mesh((1, 1), ("data", "fsdp"), devices=jax.devices()[:1])


def _abstract(*kinds):
    return AbstractMesh((4, 2), ("x", "y"), axis_types=kinds)


@pytest.mark.parametrize("kinds", [(EXPLICIT, EXPLICIT), (AUTO, EXPLICIT), (AUTO, AUTO)])
def test_the_auto_twin_differs_in_axis_types_alone(kinds):
    assert auto_mesh(_abstract(*kinds)) == _abstract(AUTO, AUTO)


def test_the_twin_of_a_mesh_of_devices_has_its_devices(explicit):
    twin = auto_mesh(explicit)
    assert (twin.axis_types, twin.axis_names) == ((AUTO, AUTO), ("data", "fsdp"))
    assert twin.devices.tolist() == explicit.devices.tolist()
    assert auto_mesh(twin) is twin


def test_a_mesh_with_manual_axes_is_refused():
    message = r"must be Auto or Explicit, got Manual axes \['y'\] of .*'x': 4, 'y': 2.*; pass the"
    with pytest.raises(ValueError, match=message):
        auto_mesh(_abstract(AUTO, MANUAL))


def test_arrays_change_their_mesh_without_a_copy(explicit):
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("f4")
    array = jax.device_put(x, NamedSharding(explicit, PartitionSpec("data")))
    key = jax.device_put(jax.random.key(3), NamedSharding(explicit, PartitionSpec()))
    shape = jax.ShapeDtypeStruct((3, 5), "f4", sharding=array.sharding)
    elsewhere = jax.numpy.ones(3)
    tree = {"array": array, "key": key, "shape": shape, "elsewhere": elsewhere, "numpy": x}
    moved = retyped(tree, auto_mesh(explicit))
    place = NamedSharding(auto_mesh(explicit), PartitionSpec("data"))
    assert moved["array"].sharding == moved["shape"].sharding == place
    assert moved["array"].unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(moved["array"], x)
    assert jax.random.key_data(moved["key"]).tolist() == jax.random.key_data(key).tolist()
    assert moved["elsewhere"] is elsewhere
    assert moved["numpy"] is x
    assert retyped(moved, explicit)["array"].sharding == array.sharding


@pytest.mark.thorough
def test_the_state_of_an_explicit_model_is_a_copy(explicit):
    """The next step donates the state, and the model stays usable."""
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.update(model, jax.device_put(state, fsdp_shardings(model, explicit)))
    trainer = Trainer(optax.sgd(0.1), _square, mesh=explicit, accumulate=2)
    before, x = np.asarray(model.kernel[...]), np.ones((4, 4), "f4")
    state, _ = trainer.step(trainer.init(model), {"x": x})
    np.testing.assert_array_equal(model.kernel[...], before)
    after = trainer.model(state)
    assert after.kernel[...].sharding.mesh == explicit
    with jax.set_mesh(explicit):
        y = after(jax.numpy.asarray(x))
    # By hand: the gradient of the mean of y² is 2/12 xᵀy, from biases of 0.
    want = before - 0.1 * (2 / 12) * x.T @ (x @ before)
    np.testing.assert_allclose(after.kernel[...], want, rtol=1e-5)  # float32 sums of 4
    bias = -0.1 * (2 / 12) * (x @ before).sum(0)
    np.testing.assert_allclose(y, x @ want + bias, rtol=1e-4)  # of 4 rounded products


def _square(model, batch, *, key):
    y = model(batch["x"])
    return (y**2).sum(), y.size * 1.0


@pytest.mark.parametrize(
    ("axes", "spec"),
    [
        ({"data": 2, "fsdp": 2, "expert": 2, "context": 2}, PartitionSpec()),
        ({"x": 2, "y": 4}, PartitionSpec(None, ("y", "x"))),
        ({"x": 1, "stage": 1, "tensor": 2}, PartitionSpec("tensor")),
    ],
)
def test_an_axis_that_splits_rows_tokens_or_parameters_is_fine(axes, spec):
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AUTO,) * len(axes))
    check_uses(mesh, {"w": NamedSharding(mesh, spec), "b": NamedSharding(mesh, PartitionSpec())})


@pytest.mark.thorough
@pytest.mark.parametrize("axis", ["tensor", "stage"])
def test_an_axis_that_splits_nothing_is_refused_with_what_to_type(axis):
    mesh = abstract_mesh(8, fsdp=4, **{axis: 2})
    model = nnx.eval_shape(lambda: TinyDecoder(vocab_size=8, width=4, depth=1, rngs=nnx.Rngs(0)))
    trainer = Trainer(optax.sgd(0.1), lm_loss(), mesh=mesh)
    batch = dict.fromkeys(("tokens", "targets", "mask"), np.ones((8, 2), np.int32))
    message = (
        rf"axis above 1 must split rows \(data, fsdp, expert\).* got {axis}=2, .*; "
        rf"write data=2 instead of {axis}=2, or place parameters with .* over '{axis}', "
        r"as abstract\(config, mesh=mesh\)"
    )
    with pytest.raises(ValueError, match=message):
        estimate(trainer, model, batch)


def test_an_fsdp_axis_that_splits_no_parameter_is_told(caplog):
    mesh = AbstractMesh((4, 2), ("fsdp", "data"), axis_types=(AUTO,) * 2)
    check_uses(mesh, {"w": NamedSharding(mesh, PartitionSpec("fsdp"))})
    assert not caplog.records
    check_uses(mesh, {"w": NamedSharding(mesh, PartitionSpec("data"))})
    assert "fsdp=4 splits rows and no parameter" in caplog.text
    assert "abstract(config, mesh=mesh)" in caplog.text


def test_axes_of_other_names_that_split_nothing_are_refused():
    mesh = _abstract(EXPLICIT, EXPLICIT)
    model = nnx.eval_shape(lambda: nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    trainer = Trainer(optax.sgd(0.1), _square, mesh=mesh)
    with pytest.raises(ValueError, match=r"got x=4, .* write data=4 instead of x=4"):
        trainer.program(model, {"x": np.ones((8, 4), "f4")})
    places = {"kernel": PartitionSpec("x", "y"), "bias": PartitionSpec("y")}
    for name, spec in places.items():
        param = getattr(model, name)
        param.set_value(param.get_value().update(sharding=NamedSharding(mesh, spec)))
    program = trainer.program(model, {"x": np.ones((8, 4), "f4")})
    assert program.args[0].params["kernel"].sharding.shard_shape((4, 2)) == (1, 1)


@pytest.mark.slow
def test_meshes_of_both_kinds_give_one_program_without_accumulation(on_eight_devices):
    same = on_eight_devices("axis_types.py")
    assert len(same) == 5
    assert all(same.values()), same


@pytest.mark.thorough
def test_meshes_of_both_kinds_give_one_program_and_one_device_s_losses(on_eight_devices, tmp_path):
    found = on_eight_devices("axis_types.py", str(tmp_path))
    assert len(found["same"]) == 5
    assert all(found["same"].values()), found["same"]
    one, auto = found["one"], found["inputs"]["auto"]
    assert one["losses"][2] != one["losses"][0]
    # Float32 sums over other devices, for 3 steps.
    for name, values in {**found["losses"], "auto": auto}.items():
        np.testing.assert_allclose(values, one["losses"], rtol=1e-5, err_msg=name)
    for name, values in found["inputs"].items():  # the same program
        assert values == auto, name
    assert found["estimates"][0] == found["estimates"][1]
    likelihoods = found["model"].pop("loglikelihood")
    assert likelihoods["explicit"] == likelihoods["auto"]
    assert len(found["model"]) == 4
    assert all(found["model"].values()), found["model"]
    steps = found["fit"]
    assert [steps[str(step)]["loss"] for step in range(3)] == auto
    for name, value in one["eval"].items():
        assert steps["2"][name] == pytest.approx(value, rel=1e-5), name
    assert steps["2"]["watch/out.kernel/norm"] == pytest.approx(one["norm"], rel=1e-5)


def test_the_default_mesh_takes_a_model_of_another_explicit_mesh_of_one_device(explicit):
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    nnx.update(model, jax.device_put(nnx.state(model), NamedSharding(explicit, PartitionSpec())))
    trainer = Trainer(optax.sgd(0.1), _square)
    state = trainer.init(model)
    assert state.params["kernel"].sharding.mesh == make_mesh(devices=jax.devices()[:1])
    assert np.isfinite(trainer.step(state, {"x": np.ones((4, 4), "f4")})[1].read()["loss"])
