# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Places on a mesh of abstract devices; what runs on real ones is in test_loading.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from dovetail_checkpoint.layout import pieces, placing


@pytest.fixture
def mesh():
    """2 x 1 x 1 of the test's two devices."""
    devices = np.array(jax.devices()[:2]).reshape(2, 1, 1)
    return Mesh(devices, ("a", "b", "c"), axis_types=(AxisType.Explicit,) * 3)


def test_a_source_is_cut_as_its_target_where_the_mesh_divides_it(mesh):
    layer = pieces.transposed(pieces.whole("w", (6, 4), "float32"), (1, 0))
    (piece, _) = pieces.stacked([layer, layer], 0).pieces
    place = NamedSharding(mesh, PartitionSpec(None, ("a", "b"), "c"))
    found = placing.place_of_source(piece, (6, 4), place)
    assert found.spec == PartitionSpec("c", ("a", "b"))
    assert found.mesh.axis_types == (AxisType.Auto,) * 3
    odd = placing.place_of_source(piece, (6, 5), place)
    assert odd.spec == PartitionSpec("c", None)


def test_a_source_for_one_device_lies_there():
    piece = pieces.whole("w", (6, 4), "float32").pieces[0]
    alone = SingleDeviceSharding(jax.devices()[1])
    assert placing.place_of_source(piece, (6, 4), alone) is alone


def test_pieces_are_cut_and_put_where_they_belong():
    value = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    leaf = pieces.transposed(pieces.whole("w", (5, 6), "float32"), (1, 0))
    half = pieces.converted(pieces.sliced(leaf, 0, 2, 5), "bfloat16")
    place = jnp.zeros(()).sharding
    block = placing.cut(jnp.asarray(value), half.pieces[0], place)
    want = value.T[2:5].astype(jnp.bfloat16)
    assert np.array_equal(block, want)
    two = pieces.stacked([half, half], 1)
    into = placing.empty(two, place)
    found = placing.update(into, jnp.asarray(value), two.pieces[1])
    assert into.is_deleted()
    assert np.array_equal(found, np.stack([np.zeros_like(want), want], 1))


@pytest.mark.capability("restoring on other numbers of devices", on="cuda")
def test_the_programs_lower_for_cuda():
    (piece, _) = pieces.stacked([pieces.whole("w", (5, 6), "float32")] * 2, 0).pieces
    place = jnp.zeros(()).sharding
    into, value = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 5, 6), (5, 6)))

    def program(into, value):
        starts, form = np.zeros(2, np.int32), placing._form(piece)
        into = placing._update(into, value, starts, np.zeros(3, np.int32), form=form, place=place)
        return into, placing.cut(value, piece, place)

    exported = jax.export.export(jax.jit(program), platforms=["cuda"])(into, value)
    assert exported.platforms == ("cuda",)
