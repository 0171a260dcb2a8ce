# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance cases for paged attention and paged writing: correct or refused, never ignored.

Expected values are NumPy in float64, by loops over rows. Everything a function must not read is
NaN: rows beyond the last request, pages in no table, places beyond a request's length or before its
window. Unused page ids are -1.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

REFUSALS = (ValueError, TypeError, NotImplementedError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of requests. Request r has queries[r] rows, the last of its lengths[r] keys.

    Attributes:
        name: Name for messages.
        needs: Features of the case: "prefill" (several rows of one request), "idle" (requests
            without rows, rows without a request), "window", "soft_cap", "sinks", "scale",
            "bfloat16", "float16", "gradient". Without one of them a function may refuse the case.
        queries: Rows of each request.
        lengths: Keys of each request.
        heads: Query heads.
        kv_heads: Key heads.
        width: Elements of a head.
        page_size: Keys per page.
        padding: Rows behind the last request.
        dtype: Dtype of q and pages.
        window: As in `paged_attention`.
        soft_cap: As in `paged_attention`.
        scale: As in `paged_attention`.
        sinks: Whether the call has sinks.
    """

    name: str
    needs: frozenset[str]
    queries: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 6
    kv_heads: int = 2
    width: int = 8
    page_size: int = 4
    padding: int = 0
    dtype: str = "float32"
    window: int | None = None
    soft_cap: float | None = None
    scale: float | None = None
    sinks: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Options of the call that differ from their defaults, without `sinks`."""
        named = {"window": self.window, "soft_cap": self.soft_cap, "scale": self.scale}
        return {name: value for name, value in named.items() if value is not None}


class Inputs(NamedTuple):
    """The arguments of a case, in NumPy. q, pages and sinks have the case's dtype.

    Attributes:
        q: Queries [M, N, H].
        pages: Cache [P, page, 2, K, H].
        page_table: Page ids i32[R, C].
        kv_lengths: Keys of each request, i32[R].
        q_starts: First row of each request, then the end of the last, i32[R + 1].
        sinks: One logit per head [N], or None.
    """

    q: np.ndarray
    pages: np.ndarray
    page_table: np.ndarray
    kv_lengths: np.ndarray
    q_starts: np.ndarray
    sinks: np.ndarray | None


class Expected(NamedTuple):
    """The output in float64, and the gradients of sum(output * cotangent).

    Attributes:
        out: Output [M, N, H].
        q: Gradient of q.
        pages: Gradient of pages.
        sinks: Gradient of sinks; 0 without sinks.
    """

    out: np.ndarray
    q: np.ndarray
    pages: np.ndarray
    sinks: np.ndarray


def cases() -> tuple[Case, ...]:
    """Returns every case of the suite."""
    single: dict[str, Any] = {"queries": (1,), "lengths": (9,)}
    decode: dict[str, Any] = {"queries": (1, 1, 1), "lengths": (1, 130, 5)}
    mixed: dict[str, Any] = {
        "queries": (3, 1, 0, 9, 1),
        "lengths": (7, 11, 5, 9, 300),
        "padding": 2,
    }
    both = frozenset({"prefill", "idle"})
    return (
        Case(name="decode", needs=frozenset(), **decode),
        Case(name="one request", needs=frozenset(), kv_heads=6, **single),
        Case(name="pages of 5", needs=frozenset(), page_size=5, width=5, kv_heads=1, **decode),
        Case(name="a page of all", needs=frozenset(), page_size=160, **decode),
        Case(name="chunk", needs=frozenset({"prefill"}), queries=(6, 7), lengths=(31, 7)),
        Case(name="mixed", needs=both, **mixed),
        Case(name="long prefill", needs=frozenset({"prefill"}), queries=(70, 2), lengths=(131, 2)),
        Case(name="nothing", needs=frozenset({"idle"}), queries=(0, 0), lengths=(0, 3), padding=2),
        Case(name="window", needs=both | {"window"}, window=5, **mixed),
        Case(name="window of 1", needs=frozenset({"window"}), window=1, **single),
        Case(name="wide window", needs=frozenset({"window"}), window=2**40, **single),
        Case(name="soft cap", needs=frozenset({"soft_cap"}), soft_cap=0.7, **single),
        Case(name="sinks", needs=frozenset({"sinks"}), sinks=True, **decode),
        Case(name="scale", needs=frozenset({"scale"}), scale=0.9, **single),
        Case(
            name="all options",
            needs=both | {"window", "soft_cap", "sinks", "scale"},
            **mixed,
            window=130,
            soft_cap=1.5,
            scale=-0.6,
            sinks=True,
        ),
        Case(name="bfloat16", needs=both | {"bfloat16"}, dtype="bfloat16", **mixed),
        Case(name="float16", needs=frozenset({"float16"}), dtype="float16", **decode),
        Case(name="gradient", needs=frozenset({"gradient"}), **decode),
    )


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
    shape = (pages, case.page_size, 2, case.kv_heads, case.width)
    cache = np.full(shape, np.nan, case_dtype(case))
    for r in range(len(lengths)):
        for j in range(first[r], lengths[r] if counts[r] else 0):
            column = j // case.page_size
            if table[r, column] < 0:
                table[r, column] = order.pop()
            cache[table[r, column], j % case.page_size] = rng.standard_normal(shape[2:])
    q = rng.standard_normal((counts.sum() + case.padding, case.heads, case.width))
    q[counts.sum() :] = np.nan
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    sinks = rng.standard_normal(case.heads).astype(cache.dtype) if case.sinks else None
    return Inputs(q.astype(cache.dtype), cache, table, lengths.astype(np.int32), starts, sinks)


def case_dtype(case: Case) -> np.dtype[Any]:
    """Returns the NumPy dtype of a case, also for bfloat16."""
    return np.dtype(jnp.dtype(case.dtype))


def expected(case: Case, given: Inputs, cotangent: np.ndarray) -> Expected:
    """Computes the output of a case row by row in float64, and its gradients by formula.

    Args:
        case: The case.
        given: Its arguments.
        cotangent: Cotangent of the output [M, N, H].
    """
    out, dq = np.zeros(given.q.shape), np.zeros(given.q.shape)
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
                k = given.pages[page, place, 0, head].astype(np.float64)
                v = given.pages[page, place, 1, head].astype(np.float64)
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
                out[row, n] = p @ v
                upstream = cotangent[row, n]
                mean = p @ (v @ upstream)
                ds = p * (v @ upstream - mean) * slope * scale
                dq[row, n] = ds @ k
                dpages[page, place, 0, head] += ds[:, None] * x
                dpages[page, place, 1, head] += p[:, None] * upstream
                dsinks[n] -= np.exp(sink - top) / total * mean
    return Expected(out, dq, dpages, dsinks)


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
    cotangent = rng.standard_normal(given.q.shape)
    cotangent[given.q_starts[-1] :] = 0
    want = expected(case, given, cotangent)
    numbers = {name: jnp.asarray(getattr(given, name)) for name in Inputs._fields[2:5]}
    floats = {"q": given.q, "pages": given.pages, "sinks": given.sinks}
    floats = {name: jnp.asarray(x) for name, x in floats.items() if x is not None}

    def call(floats: dict[str, Any]) -> Any:
        more = {"sinks": floats["sinks"]} if case.sinks else {}
        return fn(floats["q"], floats["pages"], **numbers, **case.options, **more)

    out = call(floats)
    if out.dtype != given.q.dtype or out.shape != given.q.shape:
        raise AssertionError(
            f"{case.name}: the output must be {given.q.dtype} of shape {given.q.shape}, got "
            f"{out.dtype} of shape {out.shape}."
        )
    _close(case, "output", out, want.out, given)
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
    largest = given.pages if what == "output" else want
    size = np.nanmax(np.abs(largest.astype(np.float64)), initial=0)
    error = np.abs(np.asarray(found, np.float64) - want).max(initial=0)
    if not error <= eps * size:
        raise AssertionError(f"{case.name}: {what} is off by {error:.3g}, bound {eps * size:.3g}.")


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
    known = {feature for case in cases() for feature in case.needs}
    if not known.issuperset(supports):
        raise ValueError(
            f"supports must name features of the suite, {sorted(known)}, got "
            f"supports={sorted(supports)}. Leave out {sorted(set(supports) - known)}."
        )
    for case in cases():
        try:
            check(fn, case, grad="gradient" in case.needs)
        except REFUSALS as refusal:
            if case.needs.issubset(supports):
                raise AssertionError(
                    f"{case.name}: needs {sorted(case.needs)}, all of them supported, and was "
                    f"refused: {refusal!r}."
                ) from refusal


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
    pages = rng.standard_normal((5, 3, 2, 2, 7)).astype(to)
    pages[rng.random(pages.shape) < 0.3] = np.nan
    k, v = rng.standard_normal((2, 6, 2, 7)).astype(to)
    k[1, 0, 3], v[2, 1, 4] = np.inf, -np.inf
    for slots in ([14, 0, -1, 7, -15, 3], [-1] * 6):
        want = pages.copy()
        for row, slot in enumerate(slots):
            if slot >= 0:
                want[slot // 3, slot % 3] = k[row], v[row]
        arrays = map(jnp.asarray, (pages, k, v))
        written = np.asarray(fn(*arrays, slots=jnp.array(slots, jnp.int32)))
        if written.dtype != to or written.shape != want.shape:
            raise AssertionError(f"pages came back as {written.dtype} {written.shape}.")
        wrong = np.argwhere(~((written == want) | (np.isnan(written) & np.isnan(want))))
        if len(wrong):
            raise AssertionError(f"slots {slots}: pages{wrong[0].tolist()} is not as written.")
