# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One conformance suite for every product, ours or a kernel library's. Raises AssertionError."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from qwix import QArray

from dovetail_quant.codes.codes import dequantize, quantize
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.api import Matmul

_DTYPES = ("float32", "bfloat16")
SHAPES = ((96, 33), (64, 128))  # inputs and outputs: an odd one, and one that blocks divide


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """A random product.

    Attributes:
        x: f32[R, K].
        dy: Cotangent, f32[R, N].
        codes: Codes of w [K, N].
        w: Their values in float64.
    """

    x: np.ndarray
    dy: np.ndarray
    codes: QArray
    w: np.ndarray


def problem(spec: Spec, *, rows: int, shape: tuple[int, int], seed: int = 0) -> Problem:
    """Returns a random problem with correlated inputs and outliers in x and in w, as in models.

    The weights of the last output are in [3, 4]: its zero point lies outside of the codes.

    Args:
        spec: The codes.
        rows: R.
        shape: (K, N).
        seed: Seed.
    """
    rng = np.random.default_rng(seed)
    inputs, outputs = shape
    w = rng.standard_normal(shape).astype(np.float32)
    w[1] *= 30
    w[:, -1] = 3 + rng.random(inputs, np.float32)
    mixing = np.eye(inputs) + rng.standard_normal((inputs, inputs)) / np.sqrt(inputs)
    x = rng.standard_normal((rows, inputs)) @ mixing
    x[:, 2] *= 20
    codes = jax.jit(quantize, static_argnums=1)(jnp.asarray(w), spec)
    dy = rng.standard_normal((rows, outputs)).astype(np.float32)
    exact = np.asarray(dequantize(codes)).astype(np.float64)
    return Problem(x=x.astype(np.float32), dy=dy, codes=codes, w=exact)


# max|x| in half steps.
_ACT_STEPS = {"int8": 254, "int4": 15}


def check_matmul(
    matmul: Matmul,
    *specs: Spec,
    rows: Sequence[int] = (1, 2, 7),
    shapes: Sequence[tuple[int, int]] = SHAPES,
) -> None:
    """Asserts that a product gives x w, and dy w transposed, for codes of each spec.

    Results are compared with float64 NumPy on the dequantized codes: with eps of float32, |y - x w|
    <= eps (2 sqrt(K) + 16) (sum |x||w| + max|x| sum |w| / 8). This holds for any order of sums but
    not for inputs rounded to bfloat16. With act="int8" half a step of x is added, max|x| / 254 sum
    |w|. bfloat16 x and results add 2^-8 |y|. Also: `codes` inverts `prepare` bit for bit; and for
    the first spec jit, vmap, scan over stacked weights, any batch axes.

    Args:
        matmul: The product.
        specs: Codes to check; groups must divide all inputs.
        rows: Numbers of rows, used in turn.
        shapes: Inputs and outputs of w, used in turn.

    Raises:
        AssertionError: A result is wrong; the error has the spec, the rows, the shape and the
            error.
        ValueError: There are no specs.
    """
    if not specs:
        raise ValueError("check_matmul needs specs, got specs=(); write check_matmul(m, Spec())")
    for spec in specs:
        for i, count in enumerate(rows):
            shape = shapes[i % len(shapes)]
            given = problem(spec, rows=count, shape=shape, seed=count)
            _check_values(matmul, given, spec, f"{spec}, rows={count}, shape={shape}")
    first = problem(specs[0], rows=6, shape=shapes[0])
    _check_transforms(matmul, first, specs[0], f"{specs[0]}")
    _check_refusals(matmul, first)


def bound(x: np.ndarray, w: np.ndarray, *, act: str | None = None) -> np.ndarray:
    """Returns the limit of |y - x w|, in float64 [R, N]: the formula of `check_matmul`.

    Args:
        x: Rows.
        w: Weights in float64.
        act: As in `Spec`.
    """
    x, w, eps = abs(x.astype(np.float64)), abs(w), np.finfo(np.float32).eps
    most, total = x.max(axis=1, keepdims=True), w.sum(axis=0)
    rounding = eps * (2 * np.sqrt(w.shape[0]) + 16) * (x @ w + most * total / 8)
    if act == "fp8":  # 3 bits after the first; the least number is 2^-9 of a scale
        return rounding + 2.0**-4 * (x @ w) + 2.0**-10 / 448 * most * total
    # 1.001: the step itself is rounded.
    return rounding + (1.001 * most / _ACT_STEPS[act] * total if act else 0.0)


def _check_values(matmul: Matmul, given: Problem, spec: Spec, where: str) -> None:
    prepared = matmul.prepare(given.codes)
    _assert_same_codes(matmul.codes(prepared), given.codes, where)
    given_as = {d: (jnp.asarray(given.x, d), jnp.asarray(given.dy, d)) for d in _DTYPES}

    @jax.jit
    def step(pairs: dict, prepared: object) -> dict:
        results = {}
        for dtype, (x, dy) in pairs.items():
            y, pull = jax.vjp(lambda x: matmul(x, prepared), x)
            assert y.dtype == dtype, f"y is {y.dtype} for {dtype} x: {where}"
            results[dtype] = y, pull(dy)[0]
        return results

    for dtype, results in step(given_as, prepared).items():
        x, dy = (np.asarray(a).astype(np.float64) for a in given_as[dtype])
        exact = x @ given.w, dy @ given.w.T
        allowed = bound(x, given.w, act=spec.act), bound(dy, given.w.T)
        for name, got, right, limit in zip(("y", "dx"), results, exact, allowed, strict=True):
            rounded = 2.0**-8 * abs(right) if dtype == "bfloat16" else 0.0
            _assert_close(got, right, limit + rounded, f"{name} of {dtype}: {where}")


def _check_transforms(matmul: Matmul, given: Problem, spec: Spec, where: str) -> None:
    """Checks rows two by two through every way to call a product."""
    limit = bound(given.x, given.w, act=spec.act)
    exact = given.x.astype(np.float64) @ given.w
    prepared, x = matmul.prepare(given.codes), jnp.asarray(given.x)
    other = jax.tree.map(lambda a: a[:, ::-1], given.codes)
    stack = jax.tree.map(lambda *a: jnp.stack(a), prepared, matmul.prepare(other))

    def ways(x: jax.Array, prepared: object, stack: object) -> dict[str, jax.Array]:
        both = jax.lax.scan(lambda c, rows: (c, matmul(x, rows)), 0, stack)[1]
        return {
            "two batch axes": matmul(x.reshape(3, 2, -1), prepared).reshape(6, -1),
            "no batch axis": matmul(x[5], prepared)[None],
            "vmap over x": jax.vmap(lambda row: matmul(row, prepared))(x),
            "scan over a stack": both[0],
            "scan, the other": both[1, :, ::-1],
            "vmap over a stack": jax.vmap(matmul, in_axes=(None, 0))(x, stack)[0],
        }

    results = jax.jit(ways)(x, prepared, stack) | {"without jit": matmul(x, prepared)}
    for name, got in results.items():
        rows = slice(5, None) if name == "no batch axis" else slice(None)
        _assert_close(got, exact[rows], limit[rows], f"{name}: {where}")


def _check_refusals(matmul: Matmul, given: Problem) -> None:
    prepared = matmul.prepare(given.codes)
    for bad, error in (
        (jnp.asarray(given.x[:, 1:]), ValueError),
        (jnp.asarray(given.x).astype(jnp.int32), TypeError),
    ):
        try:
            matmul(bad, prepared)
        except error:
            continue
        raise AssertionError(f"x of shape {bad.shape}, {bad.dtype} must raise {error.__name__}")


def _assert_same_codes(got: QArray, expected: QArray, where: str) -> None:
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        same = a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert same, f"codes is not the inverse of prepare: {where}"
    assert got.qtype == expected.qtype, f"codes loses qtype={expected.qtype!r}: {where}"


def _assert_close(got: jax.Array, right: np.ndarray, limit: np.ndarray, what: str) -> None:
    assert got.shape == right.shape, f"shape {got.shape}, not {right.shape}: {what}"
    excess = abs(np.asarray(got).astype(np.float64) - right) / np.maximum(limit, 1e-300)
    assert excess.max() <= 1, f"{excess.max():.3g} times the error allowed: {what}"
