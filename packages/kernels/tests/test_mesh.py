# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One program on eight devices, and what needs none."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import forced_devices
import warm_start
from dovetail_kernels.mesh import is_single, is_whole, per_shard, varying

P = PartitionSpec
PROGRAM = Path(__file__).parent / "programs" / "per_shard.py"


@pytest.mark.thorough
def test_each_shard_of_an_explicit_mesh():
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8))
    assert done.stdout == "ok\n", done.stderr


def test_without_a_sharding_nothing_is_mapped():
    calls = []

    def function(x, none):
        calls.append(type(x))
        assert none is None
        return x + 1

    options = {"out": "ab", "may": "a", "instead": "Do not.", "summed": "a"}
    arrays = (np.ones((2, 3), np.float32), None)
    out = per_shard("toy", function, arrays, ("ab", "a"), **options)
    np.testing.assert_array_equal(out, np.full((2, 3), 2.0))
    traced = jax.make_jaxpr(lambda x: per_shard("toy", function, (x, None), ("ab", "a"), **options))
    assert "shard_map" not in str(traced(jnp.ones((2, 3))))
    assert calls[0] is np.ndarray


def test_outside_of_a_map_arrays_stay_as_they_are():
    zeros = jnp.zeros(3)
    assert varying({"a": zeros}, jnp.ones(2))["a"] is zeros


@pytest.mark.thorough
def test_a_carry_varies_with_the_data_and_gradients_are_summed():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    def total(x, w):
        x, w = varying((x, w), x, w)
        start = varying(jnp.zeros(()), x)
        assert jax.typeof(start).manual_axis_type.varying == {"d"}
        return jax.lax.fori_loop(0, 3, lambda i, t: t + x[i] * w, start)[None]

    mapped = jax.shard_map(total, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    x = jnp.array([1.0, 2.0, 4.0])
    np.testing.assert_array_equal(mapped(x, jnp.float32(3)), [21.0])
    # The gradient of an argument that is equal on all devices is equal on all devices.
    assert jax.grad(lambda w: mapped(x, w)[0])(jnp.float32(3)) == 7


class Variable:
    """Weights as NNX has them: an array behind `__jax_array__`."""

    def __init__(self, value):
        self.value, self.shape, self.dtype, self.ndim = value, value.shape, value.dtype, value.ndim

    def __jax_array__(self):
        return self.value


def test_a_call_on_one_device_is_single():
    x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    assert is_single(x, np.ones(3), jnp.ones(3), Variable(jnp.ones(3)))
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.sharding.use_abstract_mesh(AbstractMesh((2,), ("x",), axis_types=(kind,))):
            assert not is_single(x)
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    split = jax.sharding.NamedSharding(mesh, P("x"))
    # Runs shard by shard, and a tuning file knows no shapes of shards.
    shard = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=split)
    assert is_whole(shard)
    assert not is_single(shard)
