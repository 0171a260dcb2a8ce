# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance cases for a quantized matmul: correct or refused, never ignored.

The function under test is called as `fn(x, w)` or `fn(x, w, activations="int8")` and must agree
with the documentation of `quantized_matmul`. w is a `PackedWeights`, packed here byte by byte.
Expected values are NumPy in float64.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dovetail_kernels.quantized.layout import PackedWeights
from dovetail_kernels.testing.suite import right_or_refused

_DTYPES = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A product of x [rows, inputs] and weights [inputs, outputs].

    Attributes:
        name: Name for messages. It seeds the random numbers.
        needs: Features of the case: "8 bits", "4 bits", "16 bits", "groups", "zero points", "int8
            zero points", "int8 activations", a dtype of x other than float32, "odd groups" (not a
            multiple of 32), "many rows" (above 4), "not finite".
        rows: M.
        inputs: D.
        outputs: F.
        bits: Bits per weight.
        groups: Groups of inputs per output channel.
        zeros: Dtype of the zero points, "float32" or "int8". None for none.
        activations: "int8" or None.
        dtype: Dtype of x.
        finite: Whether all of x is finite.
    """

    name: str
    needs: frozenset[str]
    rows: int
    inputs: int
    outputs: int
    bits: int
    groups: int = 1
    zeros: str | None = None
    activations: str | None = None
    dtype: str = "float32"
    finite: bool = True


def _case(name: str, shape: tuple[int, int, int], *, bits: int, **options: Any) -> Case:
    rows, inputs, outputs = shape
    case = Case(
        name=name,
        needs=frozenset(),
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        bits=bits,
        **options,
    )
    conditions = {
        f"{bits} bits": True,
        "groups": case.groups > 1,
        "zero points": case.zeros is not None,
        "int8 zero points": case.zeros == "int8",
        "int8 activations": case.activations is not None,
        case.dtype: case.dtype != "float32",
        "odd groups": inputs // case.groups % 32 != 0,
        "many rows": rows > 4,
        "not finite": not case.finite,
    }
    return dataclasses.replace(
        case, needs=frozenset(need for need, held in conditions.items() if held)
    )


def cases() -> tuple[Case, ...]:
    """Returns every case. Shapes are small, odd and unequal."""
    few, wide, many, odd = (3, 96, 37), (4, 192, 35), (39, 64, 38), (3, 60, 33)
    one_row, rounded = (1, 96, 37), {"activations": "int8"}  # few shapes: each is compiled
    floats, integers = "float32", "int8"  # zero points
    return (
        _case("int8, one row", one_row, bits=8),
        _case("int8, zero points", few, bits=8, zeros=floats),
        _case("int8, groups", wide, bits=8, groups=3),
        _case("int8, groups and zero points", wide, bits=8, groups=3, zeros=floats),
        _case("int8, int8 zero points", few, bits=8, zeros=integers),
        _case("int8, groups and int8 zero points", wide, bits=8, groups=3, zeros=integers),
        _case("int8, odd groups", odd, bits=8, groups=4),
        _case("int8, many rows", many, bits=8),
        _case("int8, many rows and groups", many, bits=8, groups=2, zeros=floats),
        _case("int8, not finite", wide, bits=8, finite=False),
        _case("int4, one group", few, bits=4),
        _case("int4, one row and groups", one_row, bits=4, groups=3),
        _case("int4, groups and zero points", wide, bits=4, groups=3, zeros=floats),
        _case("int4, one group and zero points", few, bits=4, zeros=floats),
        _case("int4, groups and int8 zero points", wide, bits=4, groups=3, zeros=integers),
        _case("int4, odd groups", odd, bits=4, groups=6),
        _case("int4, many rows", many, bits=4, groups=2),
        _case("int4, not finite", wide, bits=4, groups=3, finite=False),
        _case("bfloat16 weights", few, bits=16),
        _case("bfloat16 weights, many rows", many, bits=16),
        _case("bfloat16 weights, not finite", wide, bits=16, finite=False),
        _case("W8A8", few, bits=8, **rounded),
        _case("W8A8, groups and zero points", wide, bits=8, groups=3, zeros=floats, **rounded),
        _case("W4A8", one_row, bits=4, **rounded),
        _case("W8A8, int8 zero points", few, bits=8, zeros=integers, **rounded),
        _case("W4A8, many rows", many, bits=4, zeros=floats, **rounded),
        _case("W8A8, bfloat16", few, bits=8, **rounded, dtype="bfloat16"),
        _case("W8A8, not finite", wide, bits=8, **rounded, finite=False),
        _case("int8, bfloat16", few, bits=8, dtype="bfloat16"),
        _case("int4, bfloat16", wide, bits=4, groups=3, dtype="bfloat16"),
        _case("bfloat16 weights, bfloat16", few, bits=16, dtype="bfloat16"),
        _case("bfloat16 weights, float16", few, bits=16, dtype="float16"),
        _case("int8, float16", few, bits=8, dtype="float16"),
        _case("int8, float64", few, bits=8, dtype="float64"),
        _case("int4, float64", wide, bits=4, groups=3, zeros=floats, dtype="float64"),
        _case("bfloat16 weights, float64", few, bits=16, dtype="float64"),
        _case("W8A8, float64", few, bits=8, **rounded, dtype="float64"),
    )


def check_quantized_matmul(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """Checks every case: correct if `supports` holds its needs, else correct or refused.

    A refusal is a ValueError, TypeError or NotImplementedError.

    Args:
        fn: The function under test.
        supports: Features it must compute correctly; see `Case`.

    Raises:
        AssertionError: A result is wrong, with the error and its bound, or a supported case is
            refused.
        ValueError: `supports` has an unknown feature.
    """
    table = cases()
    features = frozenset().union(*(case.needs for case in table))
    check_case = functools.partial(check, fn)
    right_or_refused(check_case, table, supports=supports, features=features)


def check(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Compares the values of one case, and the gradient in x, with float64.

    Args:
        fn: The function under test.
        case: The case.
        grad: Check the gradient too.

    Raises:
        AssertionError: A result is wrong. The message has the case, the error and its bound.
    """
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    weights, packed = _weights(case, rng)
    x, exact = _rows(case, rng)
    dy = _cotangent(case, rng)
    options = {} if case.activations is None else {"activations": case.activations}
    with jax.enable_x64(case.dtype == "float64"):
        held = jax.tree.map(jnp.asarray, packed)
        y, pull = jax.vjp(lambda x: fn(x, held, **options), jnp.asarray(x))
        _same_kind(case, "y", y, (case.rows, case.outputs), x.dtype)
        _values(case, np.asarray(y).astype(np.float64), exact, weights)
        if not grad or not case.finite:
            return
        (dx,) = pull(jnp.asarray(dy))
        _same_kind(case, "dx", dx, x.shape, x.dtype)
        wide = dy.astype(np.float64)
        within = _bound(case, wide, weights.T, wide @ weights.T)
        _near(case, "dx", np.asarray(dx).astype(np.float64), wide @ weights.T, within)


def _values(case: Case, y: np.ndarray, exact: np.ndarray, weights: np.ndarray) -> None:
    finite = np.isfinite(exact).all(1)
    if np.isfinite(y[~finite]).any():
        raise AssertionError(f"{case.name}: a row of x with inf or nan gives finite results")
    expected = exact[finite] @ weights
    within = _bound(case, exact[finite], weights, expected)
    _near(case, "y", y[finite], expected, within)


def _bound(case: Case, a: np.ndarray, b: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Returns the error bound: eps times the length of the sum, plus the rounding of the result."""
    eps = np.finfo(np.float64 if case.dtype == "float64" else np.float32).eps
    sums = (a.shape[1] + 8) * (abs(a) @ abs(b))
    # Fixed-point digits of a are as fine as its largest element allows.
    largest = abs(a).max(1, keepdims=True) * abs(b).sum(0)
    rounding = float(ml_dtypes.finfo(_DTYPES[case.dtype]).eps) * abs(exact)
    # Below the least normal number hardware may give 0.
    return eps * (sums + largest) + rounding + float(ml_dtypes.finfo(_DTYPES[case.dtype]).tiny)


def _near(case: Case, what: str, found: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> None:
    error = abs(found - exact)
    wrong = ~(error <= bound)  # nan is wrong
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{case.name}: {what}{list(at)} is {found[at]:.9g}, expected {exact[at]:.9g}: off by "
            f"{error[at]:.3g}, bound {bound[at]:.3g}; {wrong.sum()} of {wrong.size} are wrong"
        )


def _same_kind(case: Case, what: str, found: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if found.shape != shape or found.dtype != dtype:
        raise AssertionError(
            f"{case.name}: {what} is {found.dtype}{list(found.shape)}, expected "
            f"{dtype}{list(shape)}"
        )


def _weights(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, PackedWeights]:
    """Draws float64 weights [inputs, outputs], and packs them in NumPy arrays."""
    shape = (case.outputs, case.inputs)
    if case.bits == 16:
        values = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        return values.astype(np.float64).T, PackedWeights(values=values, bits=16)
    low, high = -(2 ** (case.bits - 1)), 2 ** (case.bits - 1)
    q = rng.integers(low, high, shape)
    q[0, 0], q[1] = low, low  # and a channel whose sums are the largest there are
    grouped = (case.outputs, case.groups)
    scales = np.float32(10.0) ** rng.uniform(-4, 2, grouped).astype(np.float32)
    scales[2] = 0  # a channel that was zero
    zeros = rng.integers(low, high, grouped).astype(case.zeros) if case.zeros else None
    size = case.inputs // case.groups
    shift = 0 if zeros is None else np.repeat(zeros, size, axis=1).astype(np.float64)
    weights = (q - shift) * np.repeat(scales, size, axis=1).astype(np.float64)
    values = q.astype(np.int8) if case.bits == 8 else _nibbles(q, size)
    return weights.T, PackedWeights(values=values, scales=scales, zeros=zeros, bits=case.bits)


def _nibbles(q: np.ndarray, size: int) -> np.ndarray:
    packed = np.zeros((q.shape[0], q.shape[1] // 2), np.uint8)
    for start in range(0, q.shape[1], size):
        for j in range(size // 2):
            low, high = q[:, start + j] + 8, q[:, start + j + size // 2] + 8
            packed[:, start // 2 + j] = low + 16 * high
    return packed


def _rows(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws x in its dtype, and the same rows in float64, as multiplied with int8 activations."""
    shape, dtype = (case.rows, case.inputs), _DTYPES[case.dtype]
    # Rows of different size, but where the result would pass the range of float16.
    size = 2.0 ** rng.integers(-20, 20, (case.rows, 1)) if case.dtype != "float16" else 1e-2
    if case.activations:
        k = rng.integers(-127, 128, shape)
        k[:, 0] = 127
        # Away from halves, so that no rounding of the division matters; bfloat16 holds k alone.
        near = 0 if case.dtype == "bfloat16" else rng.uniform(-0.4, 0.4, shape) * (abs(k) < 127)
        x, exact = ((k + near) * size).astype(dtype), k * np.float64(size)
    else:
        x = (rng.standard_normal(shape) * size).astype(dtype)
        if case.rows > 2:
            x[1] = 0
        x[0, 3] *= 100 if case.dtype != "float16" else 1  # one far above the rest of its row
        exact = x.astype(np.float64)
    if not case.finite:
        x[0, 5], x[1, 7], x[3, 2], x[3, 1] = np.inf, np.nan, -np.inf, np.nan
        exact = np.where(np.isfinite(x).all(1, keepdims=True), exact, np.nan)
    return x, exact


def _cotangent(case: Case, rng: np.random.Generator) -> np.ndarray:
    dy = rng.standard_normal((case.rows, case.outputs))
    return (dy * (1e-2 if case.dtype == "float16" else 1)).astype(_DTYPES[case.dtype])
