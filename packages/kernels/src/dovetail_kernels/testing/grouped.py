# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance cases for a grouped product, with expected values in float64 NumPy.

For any function called as `fn(x, w, sizes)`, such as `jax.lax.ragged_dot`. A case is traced by
`jax.jit`, so sizes are unknown during compilation. The requirements of a case beyond plain float32
are in its `needs`:

    bfloat16, float16, float64   that dtype (float64 only if `jax_enable_x64` is set)
    beyond    sizes sum to less than M: the rows behind them give 0, and may hold NaN, as may
              their cotangents
    wrong     a negative size, or a sum above M: the whole result is NaN
    vmap      x and sizes have a batch axis, w has none
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.testing.suite import right_or_refused

FEATURES = frozenset({"bfloat16", "float16", "float64", "beyond", "wrong", "vmap"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A product of x [rows, inner] and w [groups, inner, outer].

    Attributes:
        name: Name for messages. It seeds the random numbers.
        rows: M.
        sizes: Rows per group; with "vmap" one tuple per element.
        inner: D.
        outer: F.
        dtype: Dtype of x and w.
        needs: Features of the case, among `FEATURES`.
    """

    name: str
    rows: int
    sizes: tuple[Any, ...]
    inner: int = 7
    outer: int = 5
    dtype: str = "float32"
    needs: frozenset[str] = frozenset()


def cases() -> tuple[Case, ...]:
    """Returns all cases. Those in float64 require `jax_enable_x64`."""
    suite = [
        Case(name="uneven", rows=37, sizes=(8, 1, 0, 9, 17, 2)),
        Case(name="empty groups", rows=37, sizes=(0, 20, 0, 0, 17, 0)),
        Case(name="one group has all", rows=37, sizes=(0, 0, 37, 0, 0, 0)),
        Case(name="one group", rows=19, sizes=(19,), inner=1, outer=1),
        Case(name="more groups than rows", rows=5, sizes=(0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0)),
        Case(name="no rows", rows=0, sizes=(0, 0, 0)),
        Case(name="many rows", rows=700, sizes=(257, 1, 0, 128, 314), inner=9, outer=11),
        _case("beyond", rows=37, sizes=(9, 0, 17, 2, 0, 0), needs={"beyond"}),
        _case("all beyond", rows=37, sizes=(0,) * 6, needs={"beyond"}),
        _case("negative", rows=37, sizes=(15, -3, 8, 1, 6, 10), needs={"wrong"}),
        _case("above", rows=37, sizes=(15, 0, 6, 0, 0, 17), needs={"wrong"}),
        # Columns and a dtype that kernels for tensor cores take.
        _case(
            "wide",
            rows=300,
            sizes=(3, 160, 0, 129),
            inner=128,
            outer=256,
            dtype="bfloat16",
            needs={"bfloat16", "beyond"},
        ),
        _case("vmap", rows=21, sizes=((20, 0, 1), (3, 9, 9), (0, 0, 21)), needs={"vmap"}),
    ]
    wide = ["float64"] if jax.config.read("jax_enable_x64") else []
    for dtype in ["bfloat16", "float16", *wide]:
        options = {"rows": 50, "sizes": (31, 0, 13, 6), "inner": 33}
        suite.append(_case(dtype, dtype=dtype, needs={dtype}, **options))
    return tuple(suite)


def _case(name: str, *, needs: set[str], **options: Any) -> Case:
    return Case(name=name, needs=frozenset(needs), **options)


def check_grouped_matmul(
    fn: Callable[..., Any], *, supports: Collection[str], grad: bool = True
) -> None:
    """Checks every case: correct if `supports` holds its needs, else correct or refused.

    A refusal is a ValueError, TypeError or NotImplementedError.

    Args:
        fn: The function under test, called as `fn(x, w, sizes)`.
        supports: Features it must compute correctly, among `FEATURES`.
        grad: Check gradients too.

    Raises:
        AssertionError: A result is wrong, or a supported case is refused.
        ValueError: `supports` has an unknown feature.
    """
    check_case = functools.partial(check, fn, grad=grad)
    right_or_refused(check_case, cases(), supports=supports, features=FEATURES)


def check(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Checks the values and gradients of one case against float64.

    Args:
        fn: The function under test, called as `fn(x, w, sizes)`.
        case: The case.
        grad: Check gradients too.

    Raises:
        AssertionError: A result is wrong.
    """
    x, w, g = _draw(case)
    sizes = jnp.asarray(case.sizes, jnp.int32)
    batched = "vmap" in case.needs
    # First the type: a cotangent of another type than the result would be JAX's error.
    kind = jax.eval_shape(functools.partial(_out, fn, batched), x, w, sizes)
    if (kind.shape, kind.dtype) != (g.shape, g.dtype):
        raise AssertionError(
            f"{case.name}: out must be {g.dtype}{list(g.shape)}, got {kind.dtype}{list(kind.shape)}"
        )
    got = _all(fn, batched, x, w, sizes, g) if grad else (_out(fn, batched, x, w, sizes),)
    if "wrong" in case.needs:
        if not bool(jnp.isnan(got[0]).all()):
            raise AssertionError(f"{case.name}: sizes={case.sizes} must give NaN, got {got[0]}")
        return
    expected, bounds = _expected(case, x, w, g)
    for name, array in zip(("out", "dx", "dw"), got, strict=False):
        _compare(case, name, array, expected[name], bounds[name])


# Compiled once for all cases of one fn that have the same shapes.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _all(fn: Callable[..., Any], batched: bool, x: Any, w: Any, sizes: Any, g: Any) -> Any:
    """Returns (out, dx, dw)."""
    run = jax.vmap(fn, (0, None, 0)) if batched else fn
    out, pull = jax.vjp(lambda x, w: run(x, w, sizes), x, w)
    return out, *pull(g)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _out(fn: Callable[..., Any], batched: bool, x: Any, w: Any, sizes: Any) -> Any:
    return (jax.vmap(fn, (0, None, 0)) if batched else fn)(x, w, sizes)


def _draw(case: Case) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws x, w and the cotangent of the result, with NaN in the rows of no group."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    batch = (len(case.sizes),) if "vmap" in case.needs else ()
    count = np.shape(case.sizes)[-1]
    x = rng.standard_normal((*batch, case.rows, case.inner))
    w = rng.standard_normal((count, case.inner, case.outer))
    g = rng.standard_normal((*batch, case.rows, case.outer))
    if "beyond" in case.needs:
        x[sum(case.sizes) :], g[sum(case.sizes) :] = np.nan, np.nan
    x, w, g = (jnp.asarray(array.astype(jnp.dtype(case.dtype))) for array in (x, w, g))
    return x, w, g


def _expected(
    case: Case, x: Any, w: Any, g: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the results in float64, and a bound for the error of each number."""
    x, w, g = (np.asarray(array, np.float64) for array in (x, w, g))
    if "vmap" not in case.needs:
        return _bounded(case.dtype, x, w, g, case.sizes)
    per_element = [_bounded(case.dtype, x[i], w, g[i], sizes) for i, sizes in enumerate(case.sizes)]
    merged = []
    for elements in zip(*per_element, strict=True):
        stacked = {
            name: np.stack([element[name] for element in elements]) for name in ("out", "dx")
        }
        merged.append(stacked | {"dw": np.sum([element["dw"] for element in elements], axis=0)})
    return merged[0], merged[1]


def _bounded(
    dtype: str, x: np.ndarray, w: np.ndarray, g: np.ndarray, sizes: Sequence[int]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    values = _products(x, w, g, sizes)
    # |Σ ab| computed in order is within n eps Σ |ab| (n terms, sums in float32 or wider); then the
    # result is rounded to dtype. Sums of gradients over a batch are taken in dtype.
    sums = _products(abs(x), abs(w), abs(g), sizes)
    terms = {"out": x.shape[1], "dx": w.shape[2], "dw": max(sizes)}
    fine = np.finfo(np.float64 if dtype == "float64" else np.float32).eps
    coarse = float(jnp.finfo(dtype).eps)
    bounds = {
        name: (terms[name] + 1) * fine * sums[name] + 2 * coarse * abs(values[name])
        for name in values
    }
    return values, bounds


def _products(
    x: np.ndarray, w: np.ndarray, g: np.ndarray, sizes: Sequence[int]
) -> dict[str, np.ndarray]:
    out, dx, dw = np.zeros(g.shape), np.zeros(x.shape), np.zeros(w.shape)
    start = 0
    for e, size in enumerate(sizes):
        rows = slice(start, start + size)
        out[rows] = x[rows] @ w[e]
        dx[rows] = g[rows] @ w[e].T
        dw[e] = x[rows].T @ g[rows]
        start += size
    return {"out": out, "dx": dx, "dw": dw}


def _compare(case: Case, name: str, got: Any, expected: np.ndarray, bound: np.ndarray) -> None:
    error = abs(np.asarray(got, np.float64) - expected)
    # Not `error > bound`, which a NaN would pass.
    wrong = ~(error <= bound)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{case.name}: {name}{list(at)} is off by {error[at]}, allowed {bound[at]}; "
            f"{wrong.sum()} of {wrong.size} numbers are wrong"
        )
