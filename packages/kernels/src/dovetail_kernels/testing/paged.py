# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance cases for paged attention and paged writing: correct or refused, never ignored.

Expected values are NumPy in float64, by loops over rows. Everything a function must not read is
NaN: rows beyond the last request, pages in no table, places beyond a request's length or before its
window. Unused page ids are -1.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.paged.pages import LARGEST, QuantizedPages
from dovetail_kernels.testing.paged_cases import Case, cases
from dovetail_kernels.testing.suite import right_or_refused


class Inputs(NamedTuple):
    """The arguments of a case, in NumPy, in the case's dtypes.

    Attributes:
        q: Queries [M, N, H].
        pages: Cache [P, 2, page, K, H], or its codes.
        page_table: Page ids i32[R, C].
        kv_lengths: Keys of each request, i32[R].
        q_starts: First row of each request, then the end of the last, i32[R + 1].
        sinks: One logit per head [N], or None.
        scales: Scales of codes f32[P, 2, page, K], or None.
    """

    q: np.ndarray
    pages: np.ndarray
    page_table: np.ndarray
    kv_lengths: np.ndarray
    q_starts: np.ndarray
    sinks: np.ndarray | None
    scales: np.ndarray | None = None


class Expected(NamedTuple):
    """The output in float64, and the gradients of sum(output * cotangent).

    Attributes:
        out: Output [M, N, G].
        lse: Log-sum-exp [M, N], -inf for rows without a request.
        q: Gradient of q.
        pages: Gradient of pages.
        sinks: Gradient of sinks; 0 without sinks.
    """

    out: np.ndarray
    lse: np.ndarray
    q: np.ndarray
    pages: np.ndarray
    sinks: np.ndarray


def inputs(case: Case, *, seed: int = 0) -> Inputs:
    """Draws random arguments of a case, with NaN in every place that must not be read."""
    rng = np.random.default_rng(seed)
    counts, lengths = np.array(case.queries), np.array(case.lengths)
    first = np.zeros_like(lengths)
    if case.window is not None:
        first = np.maximum(lengths - counts - case.window + 1, 0)
    needed = -(-lengths // case.page_size)
    columns = int(needed.max()) + 2
    pages = int(needed.sum()) + 3
    order = rng.permutation(pages).tolist()
    table = np.full((len(lengths), columns), -1, np.int32)
    entries = 2 if case.value_width is None else 1
    shape = (pages, entries, case.page_size, case.kv_heads, case.width)
    codes = case.pages_dtype in LARGEST
    cache = np.full(shape, 0 if codes else np.nan, _dtype(case.pages_dtype or case.dtype))
    scales = np.full(shape[:-1], np.nan, np.float32) if codes else None
    for r in range(len(lengths)):
        for j in range(first[r], lengths[r] if counts[r] else 0):
            column = j // case.page_size
            if table[r, column] < 0:
                table[r, column] = order.pop()
            place = table[r, column], slice(None), j % case.page_size
            cache[place] = rng.standard_normal((entries, *shape[3:]))
            if scales is not None:
                cache[place] = np.rint(rng.uniform(-127, 127, (entries, *shape[3:])))
                scales[place] = rng.uniform(0.5, 2, (entries, case.kv_heads)) / 127
    q = rng.standard_normal((counts.sum() + case.padding, case.heads, case.width))
    q[counts.sum() :] = np.nan
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    dtype, lengths = _dtype(case.dtype), lengths.astype(np.int32)
    sinks = rng.standard_normal(case.heads).astype(dtype) if case.sinks else None
    return Inputs(q.astype(dtype), cache, table, lengths, starts, sinks, scales)


def _dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of this name, also for bfloat16."""
    return np.dtype(jnp.dtype(name))


def _entries(given: Inputs) -> np.ndarray:
    """Returns keys and values in float64."""
    pages = given.pages.astype(np.float64)
    return pages if given.scales is None else pages * given.scales[..., None]


def expected(case: Case, given: Inputs, cotangent: np.ndarray) -> Expected:
    """Computes the output of a case row by row in float64, and its gradients by formula.

    Args:
        case: The case.
        given: Its arguments.
        cotangent: Cotangent of the output [M, N, G].
    """
    pages, value_width = _entries(given), case.value_width or case.width
    out, dq = np.zeros((*given.q.shape[:2], value_width)), np.zeros(given.q.shape)
    lse = np.full(given.q.shape[:2], -np.inf)
    dpages, dsinks = np.zeros(given.pages.shape), np.zeros(case.heads)
    scale = case.width**-0.5 if case.scale is None else case.scale
    for r, (count, length) in enumerate(zip(case.queries, case.lengths, strict=True)):
        for i in range(count):
            row, position = given.q_starts[r] + i, length - count + i
            oldest = 0 if case.window is None else max(0, position - case.window + 1)
            j = np.arange(oldest, position + 1)
            page, place = given.page_table[r, j // case.page_size], j % case.page_size
            for n in range(case.heads):
                head = n // (case.heads // case.kv_heads)
                k = pages[page, 0, place, head]
                v = pages[page, -1, place, head, :value_width]
                x = given.q[row, n].astype(np.float64)
                s, slope = scale * (k @ x), np.ones(len(j))
                if case.soft_cap is not None:
                    bent = np.tanh(s / case.soft_cap)
                    s, slope = case.soft_cap * bent, 1 - bent**2
                sink = -np.inf if given.sinks is None else float(given.sinks[n])
                top = max(s.max(), sink)
                weights = np.exp(s - top)
                total = weights.sum() + np.exp(sink - top)
                p = weights / total
                out[row, n], lse[row, n] = p @ v, top + np.log(total)
                upstream = cotangent[row, n]
                mean = p @ (v @ upstream)
                ds = p * (v @ upstream - mean) * slope * scale
                dq[row, n] = ds @ k
                dpages[page, 0, place, head] += ds[:, None] * x
                dpages[page, -1, place, head, :value_width] += p[:, None] * upstream
                dsinks[n] -= np.exp(sink - top) / total * mean
    return Expected(out, lse, dq, dpages, dsinks)


def check(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Checks one case. Errors of `fn` are passed on.

    Args:
        fn: The function under test, called as `paged_attention`.
        case: The case.
        grad: Check the gradients of q, pages and sinks too.

    Raises:
        AssertionError: A result is wrong.
    """
    given = inputs(case)
    rng = np.random.default_rng(1)
    cotangent = rng.standard_normal((*given.q.shape[:2], case.value_width or case.width))
    cotangent[given.q_starts[-1] :] = 0
    want = expected(case, given, cotangent)
    numbers = {name: jnp.asarray(getattr(given, name)) for name in Inputs._fields[2:5]}
    floats = {"q": given.q, "pages": given.pages, "sinks": given.sinks}
    floats = {name: jnp.asarray(x) for name, x in floats.items() if x is not None}

    def call(floats: dict[str, Any]) -> Any:
        more = {"sinks": floats["sinks"]} if case.sinks else {}
        pages = floats["pages"]
        if given.scales is not None:
            pages = QuantizedPages(codes=pages, scales=jnp.asarray(given.scales))
        return fn(floats["q"], pages, **numbers, **case.options, **more)

    out, lse = call(floats) if case.lse else (call(floats), None)
    if out.dtype != given.q.dtype or out.shape != want.out.shape:
        raise AssertionError(
            f"{case.name}: the output must be {given.q.dtype} of shape {want.out.shape}, got "
            f"{out.dtype} of shape {out.shape}."
        )
    _close(case, "output", out, want.out, given)
    if lse is not None:
        _close_lse(case, np.asarray(lse, np.float64), want.lse)
    if not grad:
        return

    def loss(floats: dict[str, Any]) -> Any:
        out = call(floats).astype(jnp.float32)
        return jnp.vdot(out, jnp.asarray(cotangent, jnp.float32))

    for name, gradient in jax.grad(loss)(floats).items():
        _close(case, f"gradient of {name}", gradient, getattr(want, name), given)


def _close(case: Case, what: str, found: Any, want: np.ndarray, given: Inputs) -> None:
    """Compares with a bound from the case's roundings.

    The bound is two roundings of the dtype (weights and result) plus those of f32 sums of H + S.
    """
    lengths = case.width + max(case.lengths)
    eps = 2 * float(jnp.finfo(case.dtype).eps) + float(np.finfo(np.float32).eps) * lengths
    # The output is a mean of values; a gradient is a sum, taken as large as its largest.
    largest = _entries(given) if what == "output" else want
    size = np.nanmax(np.abs(largest.astype(np.float64)), initial=0)
    error = np.abs(np.asarray(found, np.float64) - want).max(initial=0)
    if not error <= eps * size:
        raise AssertionError(f"{case.name}: {what} is off by {error:.3g}, bound {eps * size:.3g}.")


def _close_lse(case: Case, found: np.ndarray, want: np.ndarray) -> None:
    """Compares with a bound from f32 sums of H + S, relative to the largest."""
    rows = np.isfinite(want)
    if found.shape != want.shape or not (np.isneginf(found) == ~rows).all():
        raise AssertionError(f"{case.name}: lse must be -inf for rows without a request alone.")
    eps = float(np.finfo(np.float32).eps) * (case.width + max(case.lengths))
    bound = eps * max(1, np.abs(want[rows]).max(initial=0))
    error = np.abs(found[rows] - want[rows]).max(initial=0)
    if not error <= bound:
        raise AssertionError(f"{case.name}: lse is off by {error:.3g}, bound {bound:.3g}.")


def check_paged_attention(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """Checks every case: correct if `supports` holds its needs, else correct or refused.

    A refusal is a ValueError, TypeError or NotImplementedError, before or during tracing.

    Args:
        fn: The function under test, called as `paged_attention` with only the options of the case.
        supports: Features it must compute correctly; see `Case`.

    Raises:
        AssertionError: A result is wrong, or a supported case is refused.
        ValueError: `supports` has an unknown feature.

    Example:

        >>> from dovetail_kernels import paged_attention
        >>> from dovetail_kernels.testing.paged import cases, check
        >>> check(paged_attention, cases()[0], grad=False)
    """
    right_or_refused(
        lambda case: check(fn, case, grad="gradient" in case.needs),
        cases(),
        supports=supports,
        features={feature for case in cases() for feature in case.needs},
    )


def check_paged_write(fn: Callable[..., Any], *, dtype: str = "float32") -> None:
    """Checks that `fn` writes the rows of its slots and changes nothing else, to the bit.

    The unchanged places are NaN in part, and infinite values are written.

    Args:
        fn: The function under test, called as `paged_write`.
        dtype: Dtype of pages, k and v.

    Raises:
        AssertionError: A result is wrong.
    """
    rng = np.random.default_rng(0)
    to = np.dtype(jnp.dtype(dtype))
    pages = rng.standard_normal((5, 2, 3, 2, 7)).astype(to)
    pages[rng.random(pages.shape) < 0.3] = np.nan
    k, v = rng.standard_normal((2, 6, 2, 7)).astype(to)
    k[1, 0, 3], v[2, 1, 4] = np.inf, -np.inf
    for slots in ([14, 0, -1, 7, -15, 3], [-1] * 6):
        want = pages.copy()
        for row, slot in enumerate(slots):
            if slot >= 0:
                want[slot // 3, :, slot % 3] = k[row], v[row]
        arrays = map(jnp.asarray, (pages, k, v))
        written = np.asarray(fn(*arrays, slots=jnp.array(slots, jnp.int32)))
        if written.dtype != to or written.shape != want.shape:
            raise AssertionError(f"pages came back as {written.dtype} {written.shape}.")
        wrong = np.argwhere(~((written == want) | (np.isnan(written) & np.isnan(want))))
        if len(wrong):
            raise AssertionError(f"slots {slots}: pages{wrong[0].tolist()} is not as written.")
