# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from dovetail_kernels.varying import varying

P = PartitionSpec


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
