# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Custom calls come first only where XLA's partitioner cannot meet them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec, use_abstract_mesh

from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.mesh import is_whole

AUTO, EXPLICIT, MANUAL = AxisType.Auto, AxisType.Explicit, AxisType.Manual


def mesh_of(*kinds, size=4):
    device = AbstractDevice("NVIDIA H200", None, "cuda")
    names = tuple("xyz"[: len(kinds)])
    return AbstractMesh((size,) * len(kinds), names, axis_types=kinds, abstract_device=device)


def array(mesh, *spec):
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(*spec)) if spec else None
    return jax.ShapeDtypeStruct((4, 1024, 4, 64), jnp.bfloat16, sharding=sharding)


@pytest.mark.parametrize(
    "kinds, spec, size, whole",
    [
        ((), (), 1, True),
        ((AUTO,), (), 1, True),
        ((AUTO,), (), 4, False),
        ((EXPLICIT,), ("x",), 4, True),
        ((EXPLICIT,), (), 4, False),  # replicated: `per_shard` maps nothing
        ((EXPLICIT, AUTO), ("x",), 4, False),
        ((MANUAL,), (), 4, True),
        ((MANUAL, AUTO), (), 4, False),
    ],
    ids=str,
)
def test_meshes(kinds, spec, size, whole):
    mesh = mesh_of(*kinds, size=size)
    orders = []

    def look(q):
        ids = jnp.zeros(q.shape[:2], jnp.int32)
        plan = plan_attention(q, q, q, causal=True, segment_ids=ids)
        orders.append([choice.name for choice in plan.choices()][2:5])
        assert is_whole(q, q, q) == whole
        return q

    with use_abstract_mesh(mesh):
        jax.eval_shape(look, array(mesh, *spec))
    best = ["cudnn_packed", "mosaic", "blocked"]
    assert orders == [best if whole else [best[2], *best[:2]]]


@pytest.mark.parametrize("devices", [1, 2])
def test_without_a_mesh_the_process_decides(monkeypatch, devices):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    seen = []

    def look(q):
        seen.append(is_whole(q, q, q))
        return q

    jax.eval_shape(look, array(None))
    assert seen == [devices == 1]
    assert is_whole(array(None)) == (devices == 1)
    q = jnp.zeros(2)
    assert is_whole(q, np.zeros(2))  # on one device
