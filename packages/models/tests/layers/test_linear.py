# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from dovetail_models.layers.linear import Embed, project, rows_dot, whole


@pytest.fixture
def embed():
    return Embed(5, 3, std=0.5, rngs=nnx.Rngs(0))


def alone(x, names):
    return x


def test_lookup_gives_rows_and_nan_outside(embed):
    got = embed(jnp.array([[4, 0, 5, -1]]), constrain=alone)
    np.testing.assert_array_equal(got[0, :2], embed.embedding[...][jnp.array([4, 0])])
    assert np.isnan(got[0, 2:]).all()


def test_attend_is_the_product_with_every_row_in_float32(embed):
    embed.embedding.set_value(embed.embedding[...].astype(jnp.bfloat16))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 3)), jnp.bfloat16)
    got = embed.attend(x)
    assert got.dtype == jnp.float32
    want = np.asarray(x, np.float64) @ np.asarray(embed.embedding[...], np.float64).T
    # Products of bfloat16 are exact in float32; only the sums of three round.
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_projection_carries_its_names():
    linear = project((4, 6), ("embed", "heads"), units=(1, 3), bias=True, std=0.1, rngs=nnx.Rngs(0))
    assert linear.kernel.shape == (4, 6)
    assert linear.kernel.get_metadata("out_sharding") == ("embed", "heads")
    assert linear.kernel.get_metadata("units") == (1, 3)
    assert linear.bias is not None
    assert linear.bias.get_metadata("out_sharding") == ("heads",)
    assert linear.bias.get_metadata("units") == (3,)


class Halves:
    """A kernel that is kept as codes, as far as a layer knows it."""

    def __init__(self, codes):
        self.codes = codes

    def dequantize(self):
        return self.codes.astype(jnp.float32) / 2


def test_codes_are_decoded_where_a_whole_array_is_needed():
    codes = jnp.array([[1, -2, 3]], jnp.int8)
    np.testing.assert_array_equal(whole(Halves(codes)), [[0.5, -1.0, 1.5]])
    assert whole(codes) is codes


@pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5), (2, 3, 4, 5)])
def test_a_product_of_rows_is_that_of_dot_general_with_its_gradients(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    w = jnp.asarray(rng.normal(size=(5, 6)), jnp.float32)
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    weights = jnp.asarray(rng.normal(size=(*shape[:-1], 6)), jnp.float32)

    def run(product):
        def total(x, w):
            y = product(x, w, numbers, preferred_element_type=jnp.float32)
            return (y * weights).sum(), y

        return jax.value_and_grad(total, (0, 1), has_aux=True)(x, w)

    for a, b in zip(
        jax.tree.leaves(run(rows_dot)), jax.tree.leaves(run(jax.lax.dot_general)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # sums in another order


def test_the_gradient_by_a_kernel_contracts_one_axis():
    x, w = jnp.ones((2, 3, 5)), jnp.ones((5, 6))
    numbers = (((2,), (0,)), ((), ()))
    grad = jax.grad(lambda w: rows_dot(x, w, numbers).sum())
    products = [e for e in jax.make_jaxpr(grad)(w).eqns if e.primitive.name == "dot_general"]
    assert all(len(e.params["dimension_numbers"][0][0]) == 1 for e in products)
    transposed = rows_dot(x, w.T, (((2,), (1,)), ((), ())))
    np.testing.assert_array_equal(transposed, jnp.full((2, 3, 6), 5.0))


def test_on_a_mesh_axes_are_not_joined():
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    numbers = (((2,), (0,)), ((), ()))
    with jax.sharding.use_abstract_mesh(mesh):
        jaxpr = jax.make_jaxpr(lambda x, w: rows_dot(x, w, numbers))(
            jnp.ones((2, 3, 5)), jnp.ones((5, 6))
        )
    assert [e.primitive.name for e in jaxpr.eqns] == ["dot_general"]
