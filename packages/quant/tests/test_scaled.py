# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The layouts, operands, error and gradients of `Scaled`; `test_testing` runs the suite on it."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwix import QArray

from dovetail_quant import apply, plan
from dovetail_quant.codes.layout import pack_weights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.choose import Auto
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.matmul.scaled import Scaled, TransposedCodes
from dovetail_quant.testing import Problem, bound, problem

GROUPS = Spec(weight="int4", group=16, symmetric=False)
# Inputs, outputs: no axis of rows or groups has either size.
SHAPE = (96, 33)
LAYOUTS = [
    (Spec(), TransposedCodes),
    (Spec(weight="fp8"), TransposedCodes),
    (Spec(weight="int4", symmetric=False), TransposedCodes),
    (Spec(group=16), QArray),
    (Spec(weight="nf4"), QArray),
    (GROUPS, QArray),
    (Spec(weight="nf4", group=16), QArray),
]


@pytest.mark.parametrize(("spec", "layout"), LAYOUTS, ids=lambda value: str(value)[:60])
def test_codes_of_one_scale_lie_as_n_k(spec: Spec, layout: type) -> None:
    codes = problem(spec, rows=1, shape=SHAPE).codes
    prepared = Scaled().prepare(pack_weights(codes))  # as from a file
    assert isinstance(prepared, layout)
    assert isinstance(Scaled().prepare(codes), layout)
    if isinstance(prepared, TransposedCodes):
        assert prepared.values.shape == SHAPE[::-1]
        assert prepared.values.dtype == codes.qvalue.dtype
    same = jax.tree.map(
        lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(),
        Scaled().codes(prepared),
        codes,
    )
    assert jax.tree.all(same)


@pytest.mark.parametrize("spec", [Spec(), GROUPS], ids=str)
def test_takes_rows_of_an_embedding(spec: Spec) -> None:
    given = problem(spec, rows=1, shape=SHAPE)
    index = jnp.array([[3, 0], [32, 33]])
    rows = np.asarray(Scaled().take(Scaled().prepare(given.codes), index))
    np.testing.assert_array_equal(rows[0], given.w[:, [3, 0]].T.astype(np.float32))
    assert rows.shape == (2, 2, 96)
    assert np.isnan(rows[1, 1]).all()


@pytest.mark.parametrize("spec", [Spec(), Spec(weight="int4", group=16)], ids=str)
def test_serves_a_tied_embedding(spec: Spec) -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.embed = nnx.Embed(33, 96, rngs=nnx.Rngs(0))

    model = Model()
    quantized = apply(model, plan(model, [("embed", spec)]), matmul=Auto(spec=spec, platform="gpu"))
    table = np.asarray(quantized.embed.embedding[...].dequantize(), np.float64)
    np.testing.assert_array_equal(quantized.embed(jnp.array([4, 32])), table[[4, 32]])
    x = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32)
    logits = np.asarray(quantized.embed.attend(jnp.asarray(x)))
    assert (abs(logits - x @ table.T) <= bound(x, table.T)).all()


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of those inside of it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 2, 64])
@pytest.mark.parametrize("spec", [Spec(), Spec(weight="fp8"), Spec(weight="int4"), GROUPS], ids=str)
def test_codes_reach_the_product_by_a_conversion_alone(spec: Spec, rows: int, dtype: str) -> None:
    """XLA reads such an operand as codes on a GPU; any multiplication of it would be written."""
    prepared = Scaled().prepare(problem(spec, rows=1, shape=SHAPE).codes)
    jaxpr = jax.make_jaxpr(Scaled())(jnp.ones((rows, SHAPE[0]), dtype), prepared)
    dots = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
    assert len(dots) == 1
    x, codes = sorted((v.aval for v in dots[0].invars), key=lambda aval: SHAPE[1] in aval.shape)
    assert (codes.size, codes.dtype) == (math.prod(SHAPE), dtype)
    assert (x.size, x.dtype) == (max(2, rows) * SHAPE[0], dtype), "one row is two"
    assert dots[0].outvars[0].aval.dtype == jnp.float32
    wide = {
        e.primitive.name
        for e in equations(jaxpr)
        if any(v.aval.size == math.prod(SHAPE) for v in e.outvars)
    }
    shapes = {"reshape", "broadcast_in_dim", "squeeze", "bitcast_convert_type"}
    assert wide <= shapes | {"convert_element_type", "custom_jvp_call", "pjit", "jit"}


def relative(y: jax.Array, given: Problem, x: jax.Array) -> float:
    exact = np.asarray(x).astype(np.float64) @ given.w
    error = np.asarray(y).astype(np.float64) - exact
    return float(np.linalg.norm(error) / np.linalg.norm(exact))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("spec", [Spec(), Spec(symmetric=False), GROUPS], ids=str)
def test_no_less_accurate_than_the_formula(spec: Spec, rows: int, dtype: str) -> None:
    given = problem(spec, rows=rows, shape=(512, 48))
    x = jnp.asarray(given.x, dtype)
    ours = relative(Scaled()(x, Scaled().prepare(given.codes)), given, x)
    formula = relative(Reference()(x, given.codes), given, x)
    # Half a unit of y, and what two bfloat16 leave of a weight. In float32 sums of 512 products, in
    # another order.
    unit, more = (2.0**-8, 2.0**-17) if dtype == "bfloat16" else (2.0**-18, formula / 4)
    assert formula < unit / 2
    assert ours <= formula + more


def test_double_precision() -> None:
    given = problem(Spec(), rows=2, shape=(6, 5))
    prepared = Scaled().prepare(given.codes)
    with jax.enable_x64(True):
        y = Scaled()(jnp.asarray(given.x, jnp.float64), prepared)
    assert y.dtype == np.float64
    # `given.w` is rounded to float32; codes times scales are not.
    w = np.asarray(given.codes.qvalue, np.float64) * np.asarray(given.codes.scale, np.float64)
    np.testing.assert_allclose(y, given.x.astype(np.float64) @ w, 1e-13, 1e-11)


@pytest.mark.parametrize("spec", [Spec(), GROUPS], ids=str)
def test_gradients_are_those_of_the_formula(spec: Spec) -> None:
    """In x and in the scales, in reverse and in forward mode."""
    given = problem(spec, rows=4, shape=SHAPE)
    x, dy = jnp.asarray(given.x), jnp.asarray(given.dy)

    def ours(x: jax.Array, factor: jax.Array) -> jax.Array:
        # Doubled scales of the codes, in the layout of the product.
        codes = dataclasses.replace(given.codes, scale=given.codes.scale * factor)
        return Scaled()(x, Scaled().prepare(codes))

    factor = jnp.ones(given.codes.scale.shape)
    _, pull = jax.vjp(ours, x, factor)
    of_x, of_factor = pull(dy)
    x64, dy64 = given.x.astype(np.float64), given.dy.astype(np.float64)
    limit = bound(given.dy, given.w.T)
    assert (abs(of_x - dy64 @ given.w.T) <= limit).all()
    groups = factor.shape[0]
    by_group = np.einsum(
        "rgk,gkn->grn", x64.reshape(4, groups, -1), given.w.reshape(groups, -1, SHAPE[1])
    )
    # Sums of up to 96 products and 4 rows in float32.
    np.testing.assert_allclose(of_factor, (by_group * dy64).sum(1), 1e-4, 1e-2)
    _, tangent = jax.jvp(ours, (x, factor), (jnp.zeros_like(x), factor))
    assert (abs(tangent - x64 @ given.w) <= bound(given.x, given.w)).all()


def test_auto_keeps_the_products_of_weights_packed_for_a_cpu() -> None:
    spec = Spec(weight="int4", group=16)
    given = problem(spec, rows=3, shape=SHAPE)
    packed = Auto(spec=spec, platform="cpu").prepare(given.codes)
    y = Auto(spec=spec, platform="gpu")(jnp.asarray(given.x), packed)
    assert (abs(np.asarray(y) - given.x @ given.w) <= bound(given.x, given.w)).all()


@pytest.mark.parametrize("spec", [Spec(), GROUPS], ids=str)
def test_is_exported_for_a_gpu_with_any_number_of_rows(spec: Spec) -> None:
    given = problem(spec, rows=70, shape=SHAPE)
    matmul = Auto(spec=spec, platform="gpu")
    prepared = matmul.prepare(given.codes)
    (rows,) = jax.export.symbolic_shape("b")
    abstract = jax.ShapeDtypeStruct((rows, SHAPE[0]), jnp.bfloat16)
    jitted = jax.jit(lambda x: matmul(x, prepared))
    exported = jax.export.export(jitted, platforms=["cuda", "cpu"])(abstract)
    for count in (1, 70):
        x = jnp.asarray(given.x[:count], jnp.bfloat16)
        exact = np.asarray(x).astype(np.float64) @ given.w
        limit = bound(np.asarray(x, np.float32), given.w) + 2.0**-8 * abs(exact)
        y = np.asarray(exported.call(x)).astype(np.float64)
        assert (abs(y - exact) <= limit).all()
