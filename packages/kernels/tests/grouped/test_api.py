# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped import api
from dovetail_kernels.grouped.api import grouped_matmul, plan_grouped_matmul
from dovetail_kernels.testing import grouped as suite

IMPLS = ("tiles", "ragged_dot", "reference")
FUNCTIONS = {impl: functools.partial(grouped_matmul, impl=impl) for impl in IMPLS}
SLOW = pytest.mark.slow
PROGRAM = Path(__file__).parents[1] / "programs" / "mixture_sharded.py"
X = jax.ShapeDtypeStruct((12, 4), jnp.float32)
W = jax.ShapeDtypeStruct((3, 4, 5), jnp.float32)
SIZES = jax.ShapeDtypeStruct((3,), jnp.int32)


@pytest.mark.thorough
@pytest.mark.capability("grouped products of a mixture of experts")
@pytest.mark.parametrize("impl", IMPLS)
def test_every_implementation_gives_the_documented_answer(impl):
    suite.check_grouped_matmul(FUNCTIONS[impl], supports=suite.FEATURES)


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["tiles", *(pytest.param(i, marks=SLOW) for i in IMPLS[1:])])
def test_float64(impl):
    with jax.enable_x64(True):
        found = [case for case in suite.cases() if case.dtype == "float64"]
        assert [case.name for case in found] == ["float64"]
        suite.check(FUNCTIONS[impl], found[0])


@pytest.mark.thorough
def test_the_peer_is_refused_or_right():
    # Its answers to wrong sizes are other ones, and it has no rule for a batch of x that shares w.
    plain = suite.FEATURES - {"wrong", "vmap", "float64"}
    for case in suite.cases():
        if case.needs <= plain:
            suite.check(jax.lax.ragged_dot, case)


@pytest.mark.thorough
def test_on_eight_devices():
    strict = {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    done = warm_start.run([PROGRAM], env={**forced_devices.environment(8, cached=True), **strict})
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.thorough
def test_in_place_of_ragged_dot():
    # As a layer calls it: by position, traced, under jax.checkpoint.
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((12, 4), (3, 4, 5)))
    sizes = jnp.array([5, 0, 7])

    def loss(product, x, w):
        return (jax.checkpoint(product)(x, w, sizes) ** 2).sum()

    ours, theirs = (
        jax.jit(jax.grad(functools.partial(loss, product), (0, 1)))(x, w)
        for product in (grouped_matmul, jax.lax.ragged_dot)
    )
    for one, other in zip(ours, theirs, strict=True):
        # Sums of at most 35 terms of order 1 to 10, in another order.
        np.testing.assert_allclose(one, other, rtol=0, atol=35 * 10 * np.finfo(np.float32).eps)


@pytest.mark.thorough
def test_bits_repeat():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((12, 4)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((3, 4, 5)), jnp.float32)
    run = jax.jit(jax.value_and_grad(lambda x, w, s: grouped_matmul(x, w, s).sum(), (0, 1)))
    first, second = (run(x, w, jnp.array([5, 0, 7])) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.thorough
def test_numpy_and_other_integers():
    x, w = np.ones((4, 2), np.float32), np.full((2, 2, 3), 2, np.float32)
    for dtype in (np.int64, np.uint8):
        out = grouped_matmul(x, w, np.array([1, 3], dtype))
        np.testing.assert_array_equal(out, np.full((4, 3), 4.0))


def test_the_order_of_implementations():
    plan = plan_grouped_matmul(X, W, SIZES)
    names = [choice.name for choice in plan.choices()]
    assert names == ["mosaic", "batched", "tiles", "ragged_dot", "reference"]
    assert plan.choose().name == "tiles"
    assert plan_grouped_matmul(X, W, SIZES, impl="reference").choose().name == "reference"


def test_on_tpu_the_operation_of_xla_is_first(monkeypatch):
    monkeypatch.setattr(api, "device", lambda *arrays: Device(platform="tpu", kind="TPU v6e"))
    plan = plan_grouped_matmul(X, W, SIZES)
    assert plan.choose().name == "ragged_dot"
    assert plan.device.platform == "tpu"


def test_on_other_gpus_no_loop_waits_for_the_host(monkeypatch):
    a100 = Device(platform="gpu", kind="NVIDIA A100-SXM4-40GB")
    monkeypatch.setattr(api, "device", lambda *arrays: a100)
    choices = plan_grouped_matmul(X, W, SIZES).choices()
    assert [choice.name for choice in choices if choice.refusal is None] == [
        *("batched", "tiles", "ragged_dot", "reference")
    ]
    assert choices[0].name == "mosaic"


@pytest.mark.thorough
def test_large_sizes_whose_sum_leaves_int32_give_nan():
    x, w = jnp.ones((12, 4)), jnp.ones((3, 4, 5))
    sizes = jnp.full(3, 2**30, jnp.int32)
    out = jax.jit(lambda *given: grouped_matmul(*given, impl="reference"))(x, w, sizes)
    assert np.isnan(out).all()


def test_a_plan_names_what_was_asked():
    call = plan_grouped_matmul(X, W, SIZES).call
    assert (call.rows, call.inner, call.outer, call.count) == (12, 4, 5, 3)
    assert call.dtype == "float32"
    assert call.device.platform == "cpu"


def wrong(what, **given):
    like = {"x": X, "w": W, "sizes": SIZES} | given
    with pytest.raises(ValueError, match=what) as error:
        plan_grouped_matmul(like["x"], like["w"], like["sizes"])
    return str(error.value)


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_shapes_that_do_not_fit():
    text = wrong(r"x \[M, D\], w \[E, D, F\] and sizes \[E\]", x=shaped(2, 6, 4))
    assert "x.shape=(2, 6, 4)" in text
    assert "jax.vmap" in text
    text = wrong("one D in x", w=shaped(3, 5, 4))
    assert "w.shape=(3, 5, 4)" in text
    assert "swapaxes(1, 2)" in text
    assert "sizes.shape=(2,)" in wrong("one E", sizes=shaped(2, dtype=jnp.int32))
    wrong("at least 1", w=shaped(0, 4, 5), sizes=shaped(0, dtype=jnp.int32))


def test_dtypes_that_do_not_fit():
    text = wrong("of one dtype among float16, bfloat16", w=shaped(3, 4, 5, dtype=jnp.bfloat16))
    assert "x.dtype=float32, w.dtype=bfloat16" in text
    assert "w.astype(x.dtype)" in text
    integers = {"x": shaped(12, 4, dtype=jnp.int8), "w": shaped(3, 4, 5, dtype=jnp.int8)}
    assert "x.dtype=int8" in wrong("of one dtype among", **integers)
    text = wrong("sizes that are integers", sizes=shaped(3))
    assert "sizes.dtype=float32" in text
    assert "astype(jnp.int32)" in text


@pytest.mark.parametrize("sizes", [[5, -1, 8], [5, 0, 6], [5, 0, 8]])
def test_known_sizes_that_do_not_fit(sizes):
    text = wrong("sum to the M=12 rows of x", sizes=np.array(sizes))
    assert f"sizes={sizes}, sum {sum(sizes)}" in text
    assert "jnp.bincount" in text
    wrong("sum to the M=12 rows", sizes=jnp.array(sizes))


def test_an_unknown_implementation(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="must name implementations of grouped_matmul"):
        grouped_matmul(jnp.ones((2, 3)), jnp.ones((1, 3, 4)), jnp.array([2]), impl="sorted")


@pytest.mark.thorough
def test_a_symbolic_number_of_rows_is_exported():
    (rows,) = jax.export.symbolic_shape("m")
    shapes = (rows, 16), (3, 16, 5)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    exported = jax.export.export(jax.jit(grouped_matmul))(
        *shapes, jax.ShapeDtypeStruct((3,), jnp.int32)
    )
    rng = np.random.default_rng(0)
    w = rng.standard_normal((3, 16, 5)).astype(np.float32)
    for sizes in ([0, 0, 1], [140, 9, 150]):
        x = rng.standard_normal((sum(sizes), 16)).astype(np.float32)
        expected = np.concatenate(
            [
                np.float64(rows) @ np.float64(matrix)
                for rows, matrix in zip(np.split(x, np.cumsum(sizes)[:-1]), w, strict=True)
            ]
        )
        found = exported.call(x, w, np.array(sizes, np.int32))
        # Sums of 16 products.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
