# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""That the counts of a reader are right for each operation is in integration_tests."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from jax.export import symbolic_shape

from dovetail_kernels import attention, grouped_matmul
from dovetail_kernels.costs_in_names import recomputed, trips


def _loops(jaxpr):
    """Names of all while loops in a jaxpr."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "while":
            yield str(eqn.source_info.name_stack)
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _loops(inner)


def _names(fn, *args):
    return list(_loops(jax.make_jaxpr(fn)(*args).jaxpr))


@pytest.mark.parametrize(
    "total, each, name",
    [(12, 1, "trips=12"), (Fraction(5, 2), 2, "trips=1.25"), (1, 3, "trips=0.33333333333333331")],
)
def test_a_loop_has_the_mean_of_its_rounds_in_its_name(total, each, name):
    def loop(x):
        with trips(total, each):
            return jax.lax.while_loop(lambda x: x < 9, lambda x: x + x, x)

    assert _names(loop, 1.0) == [name]
    assert _names(jax.vmap(loop), jnp.ones(3)) == [f"vmap({name})"]


def test_a_symbolic_size_states_nothing():
    (rows,) = symbolic_shape("rows")
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 4), (3, 4, 5))]
    sizes = jax.ShapeDtypeStruct((3,), jnp.int32)
    assert _names(grouped_matmul, *args, sizes) == ["trips=3", ""]  # experts; tiles of one


def test_products_of_a_backward_pass_that_repeat_the_forward_pass_have_the_name_of_jax():
    def product(x):
        with recomputed():
            return x @ x

    (eqn,) = jax.make_jaxpr(product)(jnp.ones((2, 2))).eqns
    assert str(eqn.source_info.name_stack) == "rematted_computation"
    grads = jax.make_jaxpr(jax.grad(lambda q: attention(q, q, q).sum()))(jnp.ones((1, 8, 1, 4)))
    program = str(grads.pretty_print(name_stack=True))
    assert "rematted_computation" in program
