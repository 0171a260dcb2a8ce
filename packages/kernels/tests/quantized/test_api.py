# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The call: which implementation, its checks, what is differentiated, sharded and batched."""

import dataclasses
import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.dispatch import Device
from dovetail_kernels.quantized import api
from dovetail_kernels.quantized.api import plan_quantized_matmul, quantized_matmul
from dovetail_kernels.quantized.layout import PackedWeights, unpack_weights
from dovetail_kernels.quantized.pack import pack_weights
from dovetail_kernels.testing.quantized import Case, cases, check, check_quantized_matmul

PROGRAM = Path(__file__).parents[1] / "programs/quantized_sharded.py"
EVERYTHING = {need for case in cases() for need in case.needs}
SUPPORTS = {
    "reference": EVERYTHING,
    "blocks": EVERYTHING - {"16 bits"},
    "split": EVERYTHING - {"groups", "float64"},
    "scaled": EVERYTHING - {"zero points", "int8 activations"},
}
RNG = np.random.default_rng(0)
W = RNG.standard_normal((64, 37)).astype(np.float32)
X = RNG.standard_normal((3, 64)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.capability("products with weights of 8 and 4 bits")
@pytest.mark.parametrize("impl", SUPPORTS)
def test_conforms(impl: str) -> None:
    def compiled(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
        return jax.jit(functools.partial(quantized_matmul, impl=impl, **options))(x, w)

    check_quantized_matmul(compiled, supports=SUPPORTS[impl])


def test_every_case_has_an_implementation() -> None:
    for case in cases():
        able = [name for name, held in SUPPORTS.items() if case.needs <= held]
        assert able, case.name


@pytest.mark.capability("products with weights of 8 and 4 bits")
@pytest.mark.parametrize("name", ["W8A8", "int4, groups and zero points"])
def test_conforms_compiled(name: str) -> None:
    (case,) = [case for case in cases() if case.name == name]

    def compiled(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
        checkpointed = jax.checkpoint(functools.partial(quantized_matmul, **options))
        return jax.jit(checkpointed)(x, w)

    check(compiled, case)


def chosen(x: object, w: PackedWeights, **options: object) -> str:
    return plan_quantized_matmul(x, w, **options).choose().name


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.native, "unavailable", lambda: "is not there")


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize(
    "rows, dtype, options, activations, expected",
    [
        (1, "float32", {"bits": 8}, None, "split"),
        (32, "float32", {"bits": 8}, None, "split"),
        (33, "float32", {"bits": 8}, None, "blocks"),
        (33, "float32", {"bits": 8}, "int8", "split"),
        (1, "float32", {"bits": 4, "group_size": 32}, None, "blocks"),
        (1, "float32", {"bits": 4, "group_size": 64}, None, "split"),
        (33, "float32", {"bits": 16}, None, "reference"),
        (33, "bfloat16", {"bits": 16}, None, "split"),
        (33, "float16", {"bits": 16}, None, "reference"),
    ],
)
def test_rows_terms_and_groups_choose(
    rows: int, dtype: str, options: dict, activations: str | None, expected: str
) -> None:
    x = jax.ShapeDtypeStruct((rows, 64), jnp.dtype(dtype))
    assert chosen(x, pack_weights(W, **options), activations=activations) == expected


@pytest.mark.parametrize(
    "platform, rows, dtype, options, activations, expected",
    [
        ("gpu", 1, "bfloat16", {"bits": 8}, None, "scaled"),
        ("gpu", 512, "float32", {"bits": 8}, None, "scaled"),
        ("gpu", 512, "bfloat16", {"bits": 4, "group_size": 32}, None, "scaled"),
        ("gpu", 65, "float16", {"bits": 4, "group_size": 32}, None, "reference"),
        ("gpu", 1, "bfloat16", {"bits": 4, "group_size": 64}, None, "reference"),
        ("gpu", 2, "float32", {"bits": 8, "symmetric": False}, None, "reference"),
        ("gpu", 2, "bfloat16", {"bits": 16}, None, "scaled"),
        ("gpu", 2, "bfloat16", {"bits": 8}, "int8", "split"),
        ("gpu", 2, "bfloat16", {"bits": 8, "group_size": 32}, "int8", "reference"),
        ("tpu", 2, "bfloat16", {"bits": 8}, None, "reference"),
    ],
)
def test_on_accelerators(
    platform: str,
    rows: int,
    dtype: str,
    options: dict,
    activations: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(platform=platform, kind="one")
    monkeypatch.setattr(api.dispatch, "device", lambda *arrays: device)
    x = jax.ShapeDtypeStruct((rows, 64), jnp.dtype(dtype))
    plan = plan_quantized_matmul(x, pack_weights(W, **options), activations=activations)
    assert plan.choose().name == expected
    refused = {choice.name: choice.refusal for choice in plan.choices()}
    assert refused["native"] == f"is for a CPU, not {platform}"


def refusal(name: str, x: object, w: PackedWeights) -> str | None:
    return next(c.refusal for c in plan_quantized_matmul(x, w).choices() if c.name == name)


@pytest.mark.thorough
def test_each_refusal_says_why() -> None:
    def rows(count: int, inputs: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, inputs), np.dtype(dtype))

    def int8(inputs: int, groups: int) -> PackedWeights:
        values = jax.ShapeDtypeStruct((5, inputs), np.dtype(np.int8))
        scales = jax.ShapeDtypeStruct((5, groups), np.dtype(np.float32))
        return PackedWeights(values=values, scales=scales, bits=8)

    assert refusal("blocks", X, pack_weights(W, bits=16)) == (
        "bfloat16 weights have nothing to dequantize by blocks"
    )
    assert refusal("split", rows(3, 64), int8(64, 2)) == (
        "adds up whole channels, and these have 2 groups with scales of their own"
    )
    assert refusal("scaled", X, pack_weights(W, symmetric=False)) == (
        "adds up integers and zero points apart, which cancels digits of float32"
    )
    assert refusal("scaled", rows(65, 64), int8(64, 2)) == (
        "writes sums of 2 groups, which pays up to 64 rows of float32, not 65"
    )
    assert refusal("scaled", rows(65, 64, "bfloat16"), int8(64, 2)) is None
    rounded = plan_quantized_matmul(X, pack_weights(W), activations="int8").choices()
    assert next(choice.refusal for choice in rounded if choice.name == "scaled") == (
        "multiplies rows as they are, not rounded ones"
    )
    long = 2**17
    assert refusal("split", rows(3, long), int8(long, 1)) == (
        "its int32 sums hold D up to 131071, not D=131072"
    )
    assert refusal("split", rows(3, 64, "float64"), int8(64, 1)) == (
        "terms of its rows hold float32, not float64"
    )
    assert refusal("native", rows(3, 64, "float64"), int8(64, 1)) == (
        "accumulates in float32, not float64"
    )
    assert refusal("native", rows(5, 64), int8(64, 1)) == "is for at most 4 rows, not 5"
    assert refusal("native", rows(4, 72), int8(72, 3)) == (
        "groups of 8 bits must be multiples of 16, not 24"
    )
    assert refusal("native", X[:, :48], pack_weights(W[:48], bits=4, group_size=16)) == (
        "groups of 4 bits must be multiples of 32, not 16"
    )


def test_an_impl_that_cannot_is_an_error() -> None:
    proposal = r"split: adds up whole channels.*use impl='(native|blocks)'"
    with pytest.raises(ValueError, match=proposal):
        quantized_matmul(X, pack_weights(W, bits=4, group_size=32), impl="split")
    with pytest.raises(ValueError, match=r"impl must name implementations.*got impl='triton'"):
        quantized_matmul(X, pack_weights(W), impl="triton")


def test_bad_calls_say_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    w = pack_weights(W)
    with pytest.raises(
        TypeError, match=r"needs w as PackedWeights, got ndarray. Use pack_weights\(w, bits=8\)"
    ):
        quantized_matmul(X, W)
    with pytest.raises(TypeError, match=r"floating x \[M,D\], got dtype=int8. Use x.astype"):
        quantized_matmul(X.astype(np.int8), w)
    with pytest.raises(ValueError, match=r"D=64 as w has, got x of shape \(3, 63\). Use x.resh"):
        quantized_matmul(X[:, :63], w)
    with pytest.raises(ValueError, match=r"got x of shape \(1, 3, 64\). Use x.reshape\(-1, 64\)"):
        quantized_matmul(X[None], w)
    with pytest.raises(ValueError, match=r"M > 0.*got x of shape \(0, 64\)"):
        quantized_matmul(X[:0], w)
    with pytest.raises(ValueError, match=r"None or 'int8', got activations='fp8'. Leave it out"):
        quantized_matmul(X, w, activations="fp8")
    with pytest.raises(
        ValueError, match=r"needs integer weights, got w of bits=16. Use pack_weights"
    ):
        quantized_matmul(X, pack_weights(W, bits=16), activations="int8")
    stacked = jax.tree.map(lambda a: a[None], w)
    with pytest.raises(ValueError, match=r"got w.values of shape \(1, 37, 64\). Use jax.vmap"):
        quantized_matmul(X, stacked)


def test_weights_have_no_gradient() -> None:
    w = pack_weights(W, bits=4, group_size=32)
    with pytest.raises(ValueError, match=r"gradient in x alone.*Use jax.lax.stop_gradient\(w\)"):
        jax.grad(lambda w: quantized_matmul(X, w).sum(), allow_int=True)(w)
    with pytest.raises(ValueError, match=r"gradient in x alone"):
        jax.grad(lambda w: quantized_matmul(X, w).sum())(pack_weights(W, bits=16))


@pytest.mark.thorough
def test_weights_may_stand_beside_what_is_trained() -> None:
    w = pack_weights(W, bits=8)

    def loss(scale: jax.Array, w: PackedWeights) -> jax.Array:
        def step(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return total + quantized_matmul(row[None] * scale, w).sum(), None

        return jax.lax.scan(jax.checkpoint(step), jnp.float32(0), jnp.asarray(X))[0]

    found = jax.jit(jax.grad(loss))(jnp.float32(2), w)
    exact = X.astype(np.float64) @ _dequantized(w)
    assert abs(found - exact.sum()) < 1e-5 * abs(exact).sum()


def _dequantized(w: PackedWeights) -> np.ndarray:
    """Of 8 bits and one group."""
    return (np.asarray(w.values, np.float64) * np.asarray(w.scales, np.float64)).T


@pytest.mark.thorough
def test_eight_bit_rows_pass_gradients_through() -> None:
    w = pack_weights(W, bits=8)
    dx = jax.grad(lambda x: quantized_matmul(x, w, activations="int8").sum())(jnp.asarray(X))
    exact = np.broadcast_to(_dequantized(w).sum(1), X.shape)
    np.testing.assert_allclose(dx, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_stacked_weights_under_vmap() -> None:
    ws = [pack_weights(W * i, bits=4, group_size=32) for i in (1, 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ws)
    found = jax.vmap(lambda w: quantized_matmul(X, w))(stacked)
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[0], quantized_matmul(X, ws[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_the_same_bits_every_time() -> None:
    for options in ({"bits": 8}, {"bits": 4, "group_size": 32}, {"bits": 16}):
        w = pack_weights(W, **options)
        runs = [np.asarray(quantized_matmul(X, w)) for _ in range(3)]
        for run in runs[1:]:
            np.testing.assert_array_equal(run, runs[0])


def _compiled(case: Case, impl: str) -> tuple[object, object]:
    x = jax.ShapeDtypeStruct((case.rows, case.inputs), np.dtype(np.float32))
    w = pack_weights(
        RNG.standard_normal((case.inputs, case.outputs)).astype(np.float32), bits=case.bits
    )
    run = functools.partial(quantized_matmul, impl=impl, activations=case.activations)
    work = plan_quantized_matmul(x, w, impl=impl, activations=case.activations).choose()
    call = plan_quantized_matmul(x, w, activations=case.activations).call
    return jax.jit(run).lower(x, w).compile(), work.work(call)


@pytest.mark.parametrize(
    "impl, rows, bits, activations",
    [
        ("reference", 24, 8, None),
        ("blocks", 24, 8, None),
        ("split", 8, 8, None),
        ("split", 3, 8, "int8"),
        ("split", 8, 16, None),
    ],
)
def test_work_is_what_xla_counts(impl: str, rows: int, bits: int, activations: str | None) -> None:
    case = Case(
        name="work",
        needs=frozenset(),
        rows=rows,
        inputs=256,
        outputs=320,
        bits=bits,
        activations=activations,
    )
    compiled, work = _compiled(case, impl)
    # XLA counts element-wise work too: conversions of the weights, a few operations for each.
    assert 0.9 * work.flops < compiled.cost_analysis()["flops"] < 1.4 * work.flops
    memory = compiled.memory_analysis()
    outer = memory.argument_size_in_bytes + memory.output_size_in_bytes
    # Reading and writing what lies between counts twice in ours; blocks of a small matrix are one.
    between = 0 if impl == "blocks" else 2 * memory.temp_size_in_bytes
    assert 0.5 * (outer + between) < work.bytes < 1.5 * (outer + between)


@pytest.mark.thorough
def test_sharded_as_alone() -> None:
    done = warm_start.run(
        [PROGRAM, "blocks", "split", "scaled"], env=forced_devices.environment(4, cached=True)
    )
    assert done.stdout == "ok\n", done.stderr


AXES = ("b", "4*b", "b, s")
SYMBOLIC = [  # every pair of values, not every one of the 81 cases
    ((bits, group), impl, AXES[(i + j + k) % 3], activations)
    for i, (bits, group) in enumerate([(8, None), (8, 16), (4, 64), (4, 16), (16, None)])
    for j, impl in enumerate([("split", "blocks"), ("blocks", "split", "reference"), None])
    for k, activations in enumerate([None, "int8"])
    if not (activations and bits == 16)
]


@pytest.mark.parametrize(
    "bits_group, impl, axis, activations",
    [SYMBOLIC[0], *(pytest.param(*case, marks=pytest.mark.thorough) for case in SYMBOLIC[1:])],
)
def test_a_symbolic_number_of_rows_is_exported(bits_group, impl, axis, activations):
    """One export serves few rows and many, for which concrete calls take other implementations."""
    bits, group = bits_group
    if bits == 16:
        packed = PackedWeights(
            values=jnp.asarray(W.T, jnp.bfloat16), scales=None, zeros=None, bits=16
        )
    else:
        packed = pack_weights(jnp.asarray(W), bits=bits, group_size=group)

    def product(x):
        return quantized_matmul(
            x.reshape(math.prod(x.shape[:-1]), 64), packed, impl=impl, activations=activations
        )

    rows = jax.export.symbolic_shape(axis)
    exported = jax.export.export(jax.jit(product))(jax.ShapeDtypeStruct((*rows, 64), jnp.float32))
    exact = np.asarray(unpack_weights(packed), np.float64)
    for count in (4, 72):
        x = np.random.default_rng(count).standard_normal((count, 64)).astype(np.float32)
        wide = x.astype(np.float64)
        if activations:
            step = np.abs(wide).max(1, keepdims=True) / 127
            wide = np.round(wide / step) * step
        shaped = x if len(rows) == 1 else x.reshape(2, count // 2, 64)
        # Sums of 64 products in float32.
        np.testing.assert_allclose(exported.call(shaped), wide @ exact, atol=1e-4)


def test_native_refuses_a_symbolic_number_of_rows():
    (rows,) = jax.export.symbolic_shape("m")
    plan = plan_quantized_matmul(
        jax.ShapeDtypeStruct((rows, 64), jnp.float32), pack_weights(jnp.asarray(W), bits=8)
    )
    call = dataclasses.replace(plan.call, device=Device(kind="cpu", platform="cpu"))
    assert "at most 4 rows, not m" in api.IMPLEMENTATIONS["native"].refuse(call)
