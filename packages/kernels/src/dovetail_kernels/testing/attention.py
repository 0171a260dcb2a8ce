# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance suite of attention: cases with a float64 oracle, for any function.

A case names the features it needs. `check_attention` requires right answers for the features a
function claims. In every other case the answer must be right or the call refused; no option may be
ignored. The oracle is written in NumPy from the formulas, with gradients, and shares no code with
the functions under test. Keys and values beyond kv_lengths are NaN, because nothing may read them.
"""

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.testing.attention_cases import Case, cases, features
from dovetail_kernels.testing.suite import right_or_refused

Arrays = dict[str, np.ndarray]
ADDED = ("sinks", "bias")  # optional arrays with a gradient


def check_attention(
    fn: Callable[..., Any], *, supports: Collection[str], grad: bool = True
) -> None:
    """Checks a function on every case of the suite.

    Cases with all their needs in `supports` must be right. Every other case must be right too, or
    raise ValueError, TypeError or NotImplementedError. Only "isolation" is a matter of values and
    cannot be refused; it is skipped unless supported.

    Args:
        fn: Called as `fn(q, k, v, **options)` with the options of `dovetail_kernels.attention`,
            without those at their default.
        supports: Features of the suite; see `features`.
        grad: Whether gradients are checked too.

    Raises:
        ValueError: `supports` names a feature of no case.
        AssertionError: An answer is wrong, or a claimed case is refused.

    Example:

        >>> import jax
        >>> from dovetail_kernels.testing import check_attention
        >>> def without_options(q, k, v):
        ...     return jax.nn.dot_product_attention(q, k, v)
        >>> check_attention(without_options, supports={"float32", "gqa"}, grad=False)
    """
    check_case = functools.partial(check, fn, grad=grad)
    refusable = [c for c in cases() if "isolation" not in c.needs or c.needs.issubset(supports)]
    right_or_refused(check_case, refusable, supports=supports, features=features())


def check(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Compares values, and gradients if `grad`, with the oracle.

    The bound is eps of float32 (float64 for float64) times the length of the sums behind a value.
    For a narrower dtype it adds eps of that dtype for each rounding on the way (weights, their
    gradient, the output, the result), and for the gradient of a bias times the root of the number
    of rows in its sums. Both are relative to the largest expected value.

    Args:
        fn: Called as `fn(q, k, v, **options)`.
        case: The case.
        grad: Whether gradients are checked too.

    Raises:
        AssertionError: A value exceeds the bound. Names the case, the value, the error and the
            bound. Errors of `fn` pass through.
    """
    arrays, options = inputs(case)
    cotangents = _cotangents(case)
    expected = oracle(case, arrays, options, cotangents)
    differentiable = [name for name in ("q", "k", "v", *ADDED) if name in arrays]
    given = {name: jnp.asarray(arrays[name], case.dtype) for name in differentiable}
    inner = _inner(case)

    def loss(given: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        q, k, v = (given[name] for name in "qkv")
        result = fn(q, k, v, **options, **{name: given[name] for name in ADDED if name in given})
        out, results = (result[0], _named(result[1])) if case.stats else (result, {})
        results["out"] = out
        for name, value in results.items():
            _check_shape(case, name, value, expected[name])
        # Rows expected to be NaN, and the lse of empty rows, are left out of the loss.
        terms = [
            jnp.where(np.isfinite(expected[name]), results[name].astype(inner), 0)
            * jnp.asarray(weight, inner)
            for name, weight in cotangents.items()
        ]
        return jnp.stack([term.sum() for term in terms]).sum(), results

    if grad:
        gradients, results = jax.jit(jax.grad(loss, has_aux=True))(given)
        results |= {f"d{name}": gradient for name, gradient in gradients.items()}
    else:
        results = jax.jit(loss)(given)[1]
    for name, value in results.items():
        _compare(case, name, np.asarray(value, np.float64), expected[name])


def inputs(case: Case) -> tuple[Arrays, dict[str, Any]]:
    """Returns the arrays of a case and the other options.

    The arrays q, k, v, sinks and bias are float64 with values exact in the case's dtype.
    """
    rng = np.random.default_rng(sum(map(ord, case.name)))
    b, t, s = case.batch, case.queries, case.keys
    arrays = {
        "q": 2 * rng.standard_normal((b, t, case.heads, case.head_dim)),
        "k": rng.standard_normal((b, s, case.kv_heads, case.head_dim)),
        "v": rng.standard_normal((b, s, case.kv_heads, case.value_dim)),
    }
    if case.sinks:
        arrays["sinks"] = rng.standard_normal(case.heads)
    if case.bias is not None:
        arrays["bias"] = rng.standard_normal(_pairwise_shape(case, case.bias))
    arrays = {n: np.asarray(x.astype(jnp.dtype(case.dtype)), np.float64) for n, x in arrays.items()}
    options: dict[str, Any] = {
        name: getattr(case, name)
        for name in ("causal", "window", "soft_cap", "scale", "stats")
        if getattr(case, name)
    }
    if case.segments == "packed":
        options["segment_ids"] = _packed(rng, b, t)
    if case.segments == "pair":
        sides = [np.sort(rng.integers(low, low + 4, (b, n)), 1) for low, n in ((0, t), (1, s))]
        options["segment_ids"] = tuple(side.astype(np.int32) for side in sides)
    if case.positions == "gaps":
        segments = np.asarray(options["segment_ids"])
        first = (segments[:, :, None] == segments[:, None, :]).argmax(-1)
        options["positions"] = (2 * (np.arange(t)[None, :] - first)).astype(np.int32)
    if case.positions == "pair":
        sides = [rng.permuted(np.tile(np.arange(n), (b, 1)), axis=1) for n in (t, s)]
        options["positions"] = tuple(side.astype(np.int32) for side in sides)
    if case.kv_lengths:
        lengths = np.linspace(0, s, b).astype(np.int32)
        options["kv_lengths"] = lengths
        beyond = np.arange(s)[None, :] >= lengths[:, None]
        arrays["k"][beyond] = arrays["v"][beyond] = np.nan
    if case.mask is not None:
        options["mask"] = rng.random(_pairwise_shape(case, case.mask)) < 0.4
    if case.poison == "mask":
        hidden = np.broadcast_to(~options["mask"], (b, 1, t, s)).all((1, 2))
        arrays["k"][hidden] = arrays["v"][hidden] = np.nan
    if case.poison == "segment":
        bad = options["segment_ids"] == 2
        for name in "qkv":
            arrays[name][bad] = np.nan
    if case.poison == "last":
        arrays["k"][:, -1] = np.nan
    return arrays, options


def oracle(case: Case, arrays: Arrays, options: dict[str, Any], cotangents: Arrays) -> Arrays:
    """Computes out, lse, max and the gradients dq, dk, dv, dsinks, dbias in float64.

    Rows that see a non-finite value are NaN, and so are all gradients with a contribution from
    them.

    Args:
        case: The case.
        arrays: q, k, v, sinks and bias.
        options: The other options.
        cotangents: Cotangents of `out` and, with stats, `lse`.
    """
    groups = case.heads // case.kv_heads
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    bad = {n: np.isnan(arrays[n].sum((2, 3))) for n in "qkv"}
    q, k, v = np.nan_to_num(arrays["q"]), np.nan_to_num(arrays["k"]), np.nan_to_num(arrays["v"])
    k, v = np.repeat(k, groups, 2), np.repeat(v, groups, 2)
    see = mask(case, options)
    logits = scale * np.einsum("btnh,bsnh->bnts", q, k) + arrays.get("bias", 0)
    slope = np.ones_like(logits)
    if case.soft_cap is not None:
        tanh = np.tanh(logits / case.soft_cap)
        logits, slope = case.soft_cap * tanh, 1 - tanh**2
    logits = np.where(see, logits, -np.inf)
    sinks = arrays.get("sinks", np.full(case.heads, -np.inf))[None, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.maximum(np.maximum(logits.max(-1), sinks), -1e300)
        lse = top + np.log(np.exp(logits - top[..., None]).sum(-1) + np.exp(sinks - top))
    lse = np.where(np.isfinite(lse), lse, -np.inf)
    base = np.where(np.isfinite(lse), lse, 0)
    p = np.exp(logits - base[..., None])
    out = np.einsum("bnts,bsng->btng", p, v)
    largest = logits.max((2, 3))

    dout = cotangents["out"]
    dlse = cotangents["lse"] if "lse" in cotangents else np.zeros((1, 1, 1))
    dlse = np.where(np.isfinite(lse), dlse.swapaxes(1, 2), 0)
    # Rows expected to be NaN.
    by_any_head = see.any(1)
    rows = np.any(by_any_head & (bad["k"] | bad["v"])[:, None, :], 2)
    rows = np.asarray(rows | (np.any(by_any_head, 2) & bad["q"]))
    dout = np.where(rows[:, :, None, None], 0, dout)
    delta = np.einsum("btng,btng->bnt", dout, out) - dlse
    ds = p * (np.einsum("btng,bsng->bnts", dout, v) - delta[..., None])
    dq = scale * np.einsum("bnts,bsnh->btnh", ds * slope, k)
    dk = scale * np.einsum("bnts,btnh->bsnh", ds * slope, q)
    dv = np.einsum("bnts,btng->bsng", p, dout)
    columns = np.asarray(np.any(by_any_head & rows[:, :, None], 1))
    folded = (*k.shape[:2], case.kv_heads, groups, -1)
    nan = {"rows": rows[:, :, None, None], "columns": columns[:, :, None, None]}
    values = {
        "out": np.where(nan["rows"], np.nan, out),
        "lse": np.where(nan["rows"][..., 0], np.nan, lse.swapaxes(1, 2)),
        "max": largest,
        "dq": np.where(nan["rows"], np.nan, dq),
        "dk": np.where(nan["columns"], np.nan, dk.reshape(folded).sum(3)),
        "dv": np.where(nan["columns"], np.nan, dv.reshape(folded).sum(3)),
    }
    if case.sinks:
        values["dsinks"] = -(np.exp(sinks - base) * delta).sum((0, 2))
    if case.bias is not None:
        sizes = _pairwise_shape(case, case.bias)
        axes = tuple(axis for axis, size in enumerate(sizes) if size == 1)
        values["dbias"] = (ds * slope).sum(axes, keepdims=True)
    return values


def mask(case: Case, options: dict[str, Any]) -> np.ndarray:
    """Returns the mask [batch, heads, queries, keys] of visible keys."""
    index = np.arange(case.queries)[None, :], np.arange(case.keys)[None, :]
    see = np.ones((case.batch, case.queries, case.keys), bool)
    query, key = _sides(options.get("positions", index))
    ahead = query[:, :, None] - key[:, None, :]
    if case.causal:
        see &= ahead >= 0
    if isinstance(case.window, int):
        see &= np.abs(ahead) < case.window
    elif case.window is not None:
        see &= (-case.window[1] <= ahead) & (ahead <= case.window[0])
    if "segment_ids" in options:
        query, key = _sides(options["segment_ids"])
        see &= query[:, :, None] == key[:, None, :]
    if "kv_lengths" in options:
        see &= np.arange(case.keys)[None, None, :] < options["kv_lengths"][:, None, None]
    by_head = np.repeat(see[:, None], case.heads, 1)
    return by_head & options["mask"] if "mask" in options else by_head


def _pairwise_shape(case: Case, letters: str) -> tuple[int, ...]:
    sizes = {"b": case.batch, "n": case.heads, "t": case.queries, "s": case.keys}
    return tuple(size if letter in letters else 1 for letter, size in sizes.items())


def _sides(ids: Any) -> tuple[np.ndarray, np.ndarray]:
    return ids if isinstance(ids, tuple) else (ids, ids)


def _packed(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """Returns rows of segments 1, 2, 3 of unequal lengths, then padding 0."""
    cuts = np.sort(rng.integers(1, length, (batch, 3)), axis=1)
    index = np.arange(length)[None, :]
    ids = 1 + (index[:, None] >= cuts[:, :2, None]).sum(1)
    return np.where(index >= cuts[:, 2:], 0, ids).astype(np.int32)


def _cotangents(case: Case) -> Arrays:
    rng = np.random.default_rng(case.queries + case.keys)
    rows = (case.batch, case.queries, case.heads)
    dout = rng.standard_normal((*rows, case.value_dim)).astype(np.float32).astype(np.float64)
    if not case.stats:
        return {"out": dout}
    return {"out": dout, "lse": rng.standard_normal(rows).astype(np.float32).astype(np.float64)}


def _named(stats: Any) -> dict[str, jax.Array]:
    lse, largest = stats
    return {"lse": lse, "max": largest}


def _check_shape(case: Case, name: str, found: Any, expected: np.ndarray) -> None:
    if found.shape != expected.shape:
        raise AssertionError(
            f"{case.name}: {name} has shape {found.shape}, expected {expected.shape}"
        )


def _compare(case: Case, name: str, found: np.ndarray, expected: np.ndarray) -> None:
    _check_shape(case, name, found, expected)
    if not name.startswith("d"):
        for what, test in (("NaN", np.isnan), ("-inf", np.isneginf)):
            wrong = int((test(found) != test(expected)).sum())
            if wrong:
                raise AssertionError(
                    f"{case.name}: {wrong} values of {name} are wrongly {what}, or not"
                )
    finite = np.isfinite(expected)
    error = np.abs(np.where(finite, found - np.where(finite, expected, 0), 0)).max(initial=0)
    bound = _bound(case, name) * max(1.0, np.abs(expected[finite]).max(initial=0))
    if not error <= bound:  # NaN fails too
        raise AssertionError(f"{case.name}: error {error:.3g} of {name} exceeds {bound:.3g}")


def _inner(case: Case) -> np.dtype:
    return np.dtype("float64" if case.dtype == "float64" else "float32")


def _bound(case: Case, name: str) -> float:
    inner = _inner(case)
    longest = max(case.queries, case.keys)
    if case.bias is not None:  # its gradient is a sum over the axes of size 1
        sizes = case.batch, case.heads, case.queries, case.keys
        longest = max(longest, math.prod(sizes) // math.prod(_pairwise_shape(case, case.bias)))
    sums = float(jnp.finfo(inner).eps) * (case.head_dim + longest)
    if inner == case.dtype:
        return sums
    roundings = 4 * float(jnp.finfo(case.dtype).eps)
    if name == "dbias":
        # The terms of a row sum to about zero, so what is left are the rows' roundings: a walk.
        assert case.bias is not None
        rows = {"b": case.batch, "n": case.heads, "t": case.queries}
        roundings *= math.prod(n for letter, n in rows.items() if letter not in case.bias) ** 0.5
    return sums + roundings
