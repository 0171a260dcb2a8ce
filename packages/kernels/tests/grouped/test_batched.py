# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batched products, in the place of a GPU: any device runs their program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped import api, batched
from dovetail_kernels.grouped.api import grouped_matmul
from dovetail_kernels.grouped.batched import BATCHED
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.testing import grouped as suite

A100 = Device(platform="gpu", kind="NVIDIA A100-SXM4-40GB")
SIZES = {"rows": 96, "inner": 40, "outer": 56, "count": 5}
RUN = functools.partial(grouped_matmul, impl="batched")


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(api, "device", lambda *arrays: A100)


def call(device=A100, dtype="float32", **sizes):
    return GroupedMatmulCall(**SIZES | sizes, dtype=dtype, device=device)


@pytest.mark.capability("grouped products of a mixture of experts")
@pytest.mark.thorough
def test_conforms(on_gpu):
    for case in suite.cases():
        if case.rows and case.dtype != "float64":
            suite.check(RUN, case)


@pytest.mark.thorough
def test_float64(on_gpu):
    with jax.enable_x64(True):
        suite.check(RUN, next(case for case in suite.cases() if case.dtype == "float64"))


@pytest.mark.parametrize("sizes", [(1, 0, 299), (100, 100, 100), (17, 130, 3), (0, 0, 0)])
def test_further_blocks_of_any_expert(on_gpu, sizes):
    # Blocks of 64 rows; 150 rows of no group in the second half.
    case = suite.Case(name=f"{sizes}", rows=300, sizes=sizes, inner=6, outer=10)
    needs = frozenset({"beyond"}) if sum(sizes) < 300 else frozenset()
    suite.check(RUN, dataclasses.replace(case, needs=needs))


def test_what_is_not_finite_stays_in_its_group(on_gpu):
    rng = np.random.default_rng(0)
    x, w, g = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((300, 6), (3, 6, 10), (300, 10))
    )
    x, g = x.at[150].set(jnp.nan), g.at[150].set(jnp.inf)
    sizes = jnp.array([140, 60, 100])

    @jax.jit
    def run(x, w, g):
        out, pull = jax.vjp(lambda x, w: RUN(x, w, sizes), x, w)
        return out, *pull(g)

    out, dx, dw = run(x, w, g)
    for rows in (out, dx):
        assert np.flatnonzero(~np.isfinite(rows).all(1)).tolist() == [150]
    assert np.isfinite(dw).all((1, 2)).tolist() == [True, False, True]


def test_no_loop_forward_and_a_counted_one_backward(on_gpu):
    shapes = ((96, 40), (5, 40, 56))
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((5,), jnp.int32)
    run = jax.jit(RUN).lower(x, w, sizes).compile().as_text()
    assert "while(" not in run
    assert "conditional(" not in run

    def loss(x, w, sizes):
        return RUN(x, w, sizes).sum()

    text = jax.jit(jax.grad(loss, (0, 1))).lower(x, w, sizes).compile().as_text()
    loops = [line for line in text.splitlines() if " while(" in line]
    # XLA for CPUs makes loops of its own out of a product; those count too.
    assert loops
    assert all("known_trip_count" in line for line in loops)
    assert "conditional(" not in text


@pytest.mark.thorough
def test_composes(on_gpu):
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((2, 48, 4), (3, 4, 5)))
    sizes = jnp.array([[20, 0, 28], [1, 47, 0]])
    each = jnp.stack([RUN(*args) for args in zip(x, (w, w), sizes, strict=True)])

    def step(carry, args):
        return carry, RUN(args[0], w, args[1])

    scanned = jax.jit(lambda x, s: jax.lax.scan(step, 0, (x, s))[1])(x, sizes)
    mapped = jax.vmap(RUN, (0, None, 0))(x, w, sizes)
    exported = jax.export.export(jax.jit(jax.vmap(RUN, (0, None, 0))))(x, w, sizes)
    for other in (scanned, mapped, exported.call(x, w, sizes)):
        np.testing.assert_array_equal(other, each)


@pytest.mark.thorough
def test_inside_a_users_map(on_gpu):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((48, 4), (3, 4, 5)))
    sizes = jnp.array([20, 0, 28])

    def loss(x, w, sizes):
        return (RUN(x, w, sizes) ** 2).sum()[None]

    with jax.set_mesh(mesh):
        mapped = jax.shard_map(loss, in_specs=(P("data"), P(), P()), out_specs=P("data"))
        got = jax.jit(jax.grad(lambda *a: mapped(*a).sum(), (0, 1)))(x, w, sizes)
    expected = jax.jit(jax.grad(lambda *a: loss(*a).sum(), (0, 1)))(x, w, sizes)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_blocks_are_near_the_mean_rows():
    assert batched._height(16384, 64) == 256
    assert batched._further(16384, 64) == 63
    assert [batched._height(rows, 8) for rows in (1, 255, 256, 8192)] == [16, 16, 32, 1024]


def test_refuses():
    assert BATCHED.refuse(call()) is None
    assert "needs a GPU" in BATCHED.refuse(call(Device(platform="cpu", kind="cpu")))
    assert "rows=0" in BATCHED.refuse(call(rows=0))
    large = BATCHED.refuse(call(rows=8192, inner=4096, outer=14336, count=8))
    assert large is None
    text = BATCHED.refuse(call(rows=32768, inner=7168, outer=2048, count=256, dtype="bfloat16"))
    assert "copies matrices up to 2147483648 bytes, got 7486832640" in text
    (rows,) = jax.export.symbolic_shape("m")
    assert "needs known shapes, got rows=m" in BATCHED.refuse(call(rows=rows))


@pytest.mark.thorough
def test_work_is_that_of_the_program():
    shapes = ((96, 40), (5, 40, 56))
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((5,), jnp.int32)
    run = jax.jit(BATCHED.run, static_argnums=0)
    compiled = run.lower(call(), GroupedMatmulInputs(x, w, sizes)).compile()
    work = BATCHED.work(call())
    # XLA counts the list of blocks too.
    assert work.flops <= compiled.cost_analysis()["flops"] <= 1.05 * work.flops
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert 0.5 * work.peak_bytes <= temporary <= 1.1 * work.peak_bytes
