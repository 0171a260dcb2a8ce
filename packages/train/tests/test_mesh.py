# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import warm_start
from dovetail_train.mesh.mesh import (
    caches_cpu_programs,
    check_batch,
    fsdp_shardings,
    make_mesh,
    sharding_by_shape,
)


def _abstract_mesh(**sizes):
    return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))


def test_the_default_mesh_has_every_axis_and_is_auto():
    mesh = make_mesh(devices=jax.devices()[:1])
    assert set(mesh.shape) == {"stage", "data", "fsdp", "expert", "context", "tensor"}
    assert mesh.axis_types == (AxisType.Auto,) * 6
    assert mesh.size == 1


def test_an_axis_of_minus_one_takes_what_remains():
    assert make_mesh(data=-1, fsdp=1, devices=jax.devices()[:1]).shape["data"] == 1


@dataclasses.dataclass(frozen=True)
class _Chip:
    """A chip of a TPU slice, as JAX arranges it."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    process_index: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5"


def _slice(x, y, z):
    places = itertools.product(range(z), range(y), range(x))
    return [_Chip(id=i, coords=place[::-1]) for i, place in enumerate(places)]


@pytest.mark.capability("Axes that share a dimension of a TPU slice")
def test_axes_share_a_dimension_of_a_slice_if_they_may():
    axes = {"fsdp": 32, "tensor": 2, "devices": _slice(4, 4, 4)}
    with pytest.raises(NotImplementedError, match="allow_split_physical_axes to True"):
        make_mesh(**axes)
    mesh = make_mesh(**axes, allow_split_physical_axes=True)
    pairs = mesh.devices.reshape(32, 2)
    assert sorted(device.id for device in pairs.flat) == list(range(64))
    for one, other in pairs:
        assert sum(abs(a - b) for a, b in zip(one.coords, other.coords, strict=True)) == 1


def test_axes_that_divide_a_slice_lie_as_without_sharing():
    axes = {"fsdp": 16, "tensor": 4, "devices": _slice(4, 4, 4)}
    split = make_mesh(**axes, allow_split_physical_axes=True)
    assert (split.devices == make_mesh(**axes).devices).all()


@pytest.mark.parametrize(
    "axes, must, came, instead",
    [
        ({"data": 3}, "must divide the number of devices", "data=3", "change an axis"),
        ({"fsdp": 2}, "must be the number of devices", "for 1 devices", "pass devices="),
        ({"data": -1}, "at most one may be -1", "fsdp=-1", "make_mesh(data=-1, fsdp=1)"),
        ({"tensor": 0}, "must be positive", "tensor=0", "make_mesh(data=-1, fsdp=1)"),
    ],
)
def test_a_product_that_is_not_the_devices_is_refused(axes, must, came, instead):
    with pytest.raises(ValueError, match=must) as error:
        make_mesh(**axes, devices=jax.devices()[:1])
    assert came in str(error.value)
    assert instead in str(error.value)


@pytest.mark.parametrize(
    "shape, spec",
    [
        ((6, 8), PartitionSpec(None, "fsdp")),  # the larger of two that divide
        ((8, 6), PartitionSpec("fsdp")),
        ((8, 8), PartitionSpec("fsdp")),  # the first of equals
        ((12, 9), PartitionSpec("fsdp")),  # the one that divides
        ((7, 9), PartitionSpec()),  # neither divides
        ((3, 4), PartitionSpec()),  # 12 elements, below min_size
        ((), PartitionSpec()),
    ],
)
def test_the_largest_dimension_that_divides_is_sharded(shape, spec):
    mesh = _abstract_mesh(data=2, fsdp=2, tensor=1)
    assert sharding_by_shape(shape, mesh, min_size=13).spec == spec


@pytest.mark.thorough
def test_shardings_have_the_structure_of_the_modules_state():
    mesh = make_mesh(devices=jax.devices()[:1])
    model = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
    placed = jax.device_put(nnx.state(model), fsdp_shardings(model, mesh))
    np.testing.assert_array_equal(placed["kernel"][...], model.kernel[...])
    assert placed["kernel"][...].sharding.mesh == mesh


@pytest.fixture
def cache_folder(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("cache_folder")
def test_several_cpu_devices_and_kept_programs_do_not_go_together():
    (device,) = jax.devices()[:1]
    assert caches_cpu_programs([device, device])
    assert not caches_cpu_programs([device])
    accelerator = SimpleNamespace(platform="cuda")
    assert not caches_cpu_programs([accelerator, accelerator])
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert not caches_cpu_programs([device, device])
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


PROGRAM = """
import numpy as np, optax
from flax import nnx
from dovetail_train import Trainer
def loss(model, batch, *, key):
    return model(batch["x"]).sum(), 4.0
trainer, x = Trainer(optax.sgd(0.1), loss), np.ones((4, 8), np.float32)
state = trainer.init(nnx.Linear(8, 1, rngs=nnx.Rngs(0)))
for call in (trainer.place, lambda b: trainer.step(state, b)):
    try:
        call((x, x))
    except TypeError as error:
        print(error)
"""


@pytest.mark.parametrize("batch", [(1, 2), [1], None])
def test_a_batch_that_is_no_mapping_is_refused_with_what_to_write(batch):
    message = f"mapping of arrays .* got {type(batch).__name__}; write for example"
    with pytest.raises(TypeError, match=message):
        check_batch(batch, accumulate=1, shards=1, group=1)


@pytest.mark.thorough
def test_step_and_place_check_the_batch():
    done = warm_start.run(["-c", PROGRAM])
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all("must be a mapping of arrays" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "kind"),
    [({"y": np.ones(4)}, "dict"), ([1, 2, 3, 4], "list"), (3.0, "float"), (None, "NoneType")],
)
def test_a_batch_of_other_than_arrays_is_refused_with_what_to_write(value, kind):
    message = rf"arrays alone, .* got \{{'y': '{kind}'\}}; flatten .* np.asarray\(x\)"
    with pytest.raises(TypeError, match=message):
        check_batch({"x": np.ones((4, 2)), "y": value}, accumulate=1, shards=1, group=1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({0: np.ones((4, 2))}, r"named by strings, got \[0\]; write for example \{'x': x"),
        ({"y": np.array(["a"] * 4)}, r"hold numbers, got \{'y': '<U1'\}; leave text"),
        ({"y": np.array([None] * 4)}, r"hold numbers, got \{'y': 'object'\}; leave text"),
    ],
)
def test_a_batch_of_other_than_numbers_is_refused_with_what_to_write(batch, message):
    check_batch({"key": jax.random.split(jax.random.key(0), 4)}, accumulate=1, shards=1, group=1)
    with pytest.raises(TypeError, match=message):
        check_batch(batch, accumulate=1, shards=1, group=1)


def test_the_rows_of_the_loss_divide_those_of_the_batch():
    check_batch({"x": np.ones((24, 2))}, accumulate=2, shards=4, group=3)
    message = r"data axes × the loss's rows 2 × 4 × 3 = 24, got rows=32; use 24 rows"
    with pytest.raises(ValueError, match=message):
        check_batch({"x": np.ones((32, 2))}, accumulate=2, shards=4, group=3)


def test_a_name_is_no_mesh(unchecked):
    with pytest.raises(TypeError, match=r"mesh must be .* got mesh='fsdp'; pass make_mesh\(\)"):
        fsdp_shardings(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), "fsdp")
