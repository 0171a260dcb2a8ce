# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance cases for sampling: the tokens that may be drawn, and how often they are.

For any function called as `fn(logits, keys=keys, **options)` with options of
`dovetail_kernels.sample`. The kept tokens come from a sort in float64. Keys are fixed, so a
function passes each time or never. The `needs` of a case:

    temperature, greedy    a temperature above 0, and 0
    top_k, top_p, min_p    that option
    ties                   equal logits at a threshold stay together; greedy takes the first
    excluded               logits of -inf
    no_distribution        rows with NaN, +inf or nothing above -inf give -1
    rows                   options [B], one value per row
    bfloat16, float16      logits of that dtype
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.testing.suite import right_or_refused

FEATURES = frozenset(
    {
        *("temperature", "greedy", "top_k", "top_p", "min_p"),
        *("ties", "excluded", "no_distribution", "rows", "bfloat16", "float16"),
    }
)
_SURE = 30  # expected draws: none comes with a probability of exp(-30)
_DEVIATIONS = 5  # of a normal number; a right function exceeds it with probability 3e-7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Rows of logits [rows, V] with options of `sample`, each drawn from many times.

    Attributes:
        name: Name for messages. It seeds the random numbers.
        options: Options of the call: numbers, or tuples with one value per row.
        needs: Features of the case, among `FEATURES`.
        rows: Number of different rows.
        vocabulary: V.
        spread: Standard deviation of the logits.
        shift: Added to the logits.
        draws: Draws of each row.
    """

    name: str
    options: Mapping[str, Any]
    needs: frozenset[str] = frozenset()
    rows: int = 2
    vocabulary: int = 37
    spread: float = 1.5
    shift: float = 0.0
    draws: int = 2000


def cases() -> tuple[Case, ...]:
    """Returns every case of the suite."""
    mixed = {
        "temperature": (0.7, 1.3, 0.0, 1.0, 2.0),
        "top_k": (5, 0, 3, 1, 50),
        "top_p": (0.8, 0.6, 0.5, 1.0, 0.9),
        "min_p": (0.0, 0.1, 0.2, 0.0, 0.05),
    }
    every = ("temperature", "greedy", "top_k", "top_p", "min_p", "rows")
    return (
        _case("plain", {}),
        _case("one token", {}, vocabulary=1),
        _case("above a block", {}, vocabulary=1031, spread=3.0),
        _case("temperature", {"temperature": 0.6}, "temperature"),
        _case("hot", {"temperature": 3.0}, "temperature"),
        _case("a tiny temperature", {"temperature": 1e-38}, "temperature"),
        _case("greedy", {"temperature": 0.0}, "greedy", vocabulary=700, draws=50),
        _case("top_k", {"top_k": 7}, "top_k"),
        _case("top_k of 1", {"top_k": 1}, "top_k", draws=50),
        _case("top_k of all", {"top_k": 0}, "top_k"),
        _case("top_k above V", {"top_k": 99}, "top_k"),
        _case("top_p", {"top_p": 0.7}, "top_p"),
        _case("top_p of little", {"top_p": 0.01}, "top_p", draws=50),
        _case("top_p of all", {"top_p": 1.0}, "top_p"),
        _case("min_p", {"min_p": 0.1}, "min_p"),
        _case("min_p of 1", {"min_p": 1.0}, "min_p", draws=50),
        _case("top_p of the rest", {"top_k": 9, "top_p": 0.8}, "top_k", "top_p"),
        _case("top_p, tempered", {"temperature": 2.0, "top_p": 0.6}, "temperature", "top_p"),
        _case("min_p, tempered", {"temperature": 0.5, "min_p": 0.1}, "temperature", "min_p"),
        _case("equal logits", {"top_k": 4}, "top_k", "ties"),
        # Between thresholds of float32 no number is left.
        _case("adjacent logits", {"top_k": 9}, "top_k", "ties", spread=1e-6, shift=1.0),
        _case("equal logits, top_p", {"top_p": 0.5}, "top_p", "ties"),
        _case("equal logits, greedy", {"temperature": 0.0}, "greedy", "ties", draws=50),
        _case("excluded", {}, "excluded"),
        _case("excluded, top_k above the rest", {"top_k": 36}, "top_k", "excluded"),
        _case("no distribution", {}, "no_distribution", rows=6),
        _case("no distribution, long", {}, "no_distribution", rows=6, vocabulary=5003, draws=60),
        _case(
            "no distribution, filtered",
            {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
            *("no_distribution", "top_k", "top_p", "min_p"),
            rows=6,
        ),
        _case("bfloat16", {}, "bfloat16", vocabulary=301),
        _case("bfloat16, above a block", {"top_k": 40}, "bfloat16", "top_k", vocabulary=1031),
        _case("float16", {}, "float16", vocabulary=301),
        _case("all, by row", mixed, *every, rows=5, vocabulary=515),
        _case("all, by row, bfloat16", mixed, *every, "bfloat16", "ties", "excluded", rows=5),
    )


def _case(name: str, options: Mapping[str, Any], *needs: str, **sizes: Any) -> Case:
    return Case(name=name, options=options, needs=frozenset(needs), **sizes)


def check_sample(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """Checks every case: correct if `supports` holds its needs, else correct or refused.

    A refusal is a ValueError, TypeError or NotImplementedError. The function is called eagerly.

    Args:
        fn: The function under test, called as `sample` with only the options of the case.
        supports: Features it must compute correctly, among `FEATURES`.

    Raises:
        AssertionError: A result is wrong, or a supported case is refused.
        ValueError: `supports` has an unknown feature.

    Example:

        >>> from dovetail_kernels import sample
        >>> from dovetail_kernels.testing.sampling import cases, check
        >>> check(sample, cases()[0])
    """
    check_case = functools.partial(check, fn)
    right_or_refused(check_case, cases(), supports=supports, features=FEATURES)


def check(fn: Callable[..., Any], case: Case) -> None:
    """Checks the draws of one case. Errors of `fn` are passed on.

    A token that is not kept is never drawn. A kept token with 30 expected draws is drawn. Tokens
    with 5 expected draws, and all others together, pass a chi-square test.

    Args:
        fn: The function under test, called as `sample`.
        case: The case.

    Raises:
        AssertionError: A result is wrong.
    """
    rows = draw(case)
    # Draws of one row lie apart, among those of others.
    logits = jnp.asarray(np.tile(rows, (case.draws, 1)))
    keys = jax.random.split(jax.random.key(zlib.crc32(case.name.encode())), len(logits))
    tokens = fn(logits, keys=keys, **_arguments(case))
    if tokens.dtype != jnp.int32 or tokens.shape != keys.shape:
        raise AssertionError(
            f"{case.name}: tokens must be int32{list(keys.shape)}, got "
            f"{tokens.dtype}{list(tokens.shape)}."
        )
    by_row = np.asarray(tokens).reshape(case.draws, case.rows).T
    for i, (row, drawn) in enumerate(zip(rows, by_row, strict=True)):
        p, _ = oracle(row, **_options(case, i))
        _check_row(f"{case.name}, row {i}", drawn, p)


def draw(case: Case) -> np.ndarray:
    """Draws the different rows of a case, [rows, V] in its dtype."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    z = rng.standard_normal((case.rows, case.vocabulary)) * case.spread + case.shift
    if "ties" in case.needs and not case.shift:
        z = np.round(z) + 0.0  # not -0.0, which some orders put below 0.0
    if "excluded" in case.needs:
        z[rng.random(z.shape) < 0.5] = -np.inf
        z[:, -1] = 0.5  # something is above -inf
    if "no_distribution" in case.needs:
        z[0, 3], z[1, 20], z[2] = np.nan, np.inf, -np.inf
        z[3, 5], z[4] = -np.inf, np.nan
    dtype = next((name for name in ("bfloat16", "float16") if name in case.needs), "float32")
    return z.astype(jnp.dtype(dtype))


def oracle(
    row: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[np.ndarray | None, float]:
    """Computes the probabilities of `sample` for one row, by sorting in float64.

    Args:
        row: Logits [V].
        temperature: As in `sample`, like all other arguments.
        top_k: As in `sample`.
        top_p: As in `sample`.
        min_p: As in `sample`.

    Returns:
        (p, margin): p is f64[V], or None for a row without distribution. Sums of probabilities and
        relative probabilities differ by at least `margin` from `top_p` and `min_p`.
    """
    z = row.astype(np.float64)
    if not np.isfinite(z.max()):  # NaN if any is
        return None, 1.0
    if temperature == 0:
        return (np.arange(len(z)) == z.argmax()).astype(np.float64), 1.0
    likely, margin = np.exp((z - z.max()) / temperature), 1.0
    keep = z > -np.inf
    if top_k:
        keep &= z >= np.sort(z)[::-1][min(top_k, len(z)) - 1]
    if top_p < 1:
        # Equal logits are one group.
        values, group = np.unique(z, return_inverse=True)
        sums = np.cumsum(np.bincount(group, np.where(keep, likely, 0))[::-1])
        sums /= sums[-1]
        margin = np.abs(sums - top_p).min()
        keep &= z >= values[::-1][np.searchsorted(sums, top_p)]
    if 0 < min_p < 1:  # the likeliest token is exact
        margin = min(margin, np.abs(likely - min_p).min())
    keep &= likely >= min_p
    return np.where(keep, likely, 0) / likely[keep].sum(), margin


def _options(case: Case, i: int) -> dict[str, Any]:
    """Returns the options of row i."""
    return {
        name: value[i] if isinstance(value, tuple) else value
        for name, value in case.options.items()
    }


def _arguments(case: Case) -> dict[str, Any]:
    """Returns the options as arguments: numbers stay, tuples become arrays [B]."""
    arguments = {}
    for name, value in case.options.items():
        if isinstance(value, tuple):
            dtype = jnp.int32 if name == "top_k" else jnp.float32
            value = jnp.asarray(np.tile(value, case.draws), dtype)
        arguments[name] = value
    return arguments


def _check_row(name: str, drawn: np.ndarray, p: np.ndarray | None) -> None:
    if p is None:
        if (drawn != -1).any():
            raise AssertionError(f"{name} has no distribution and needs -1, got {drawn.max()}.")
        return
    if drawn.min() < 0 or drawn.max() >= len(p):
        raise AssertionError(f"{name}: {drawn.min()} to {drawn.max()} drawn of V={len(p)}.")
    counts, expected = np.bincount(drawn, minlength=len(p)), p * len(drawn)
    wrong = np.flatnonzero((counts > 0) & (p == 0))
    if len(wrong):
        raise AssertionError(f"{name}: token {wrong[0]} is not kept, and was drawn.")
    missing = np.flatnonzero((counts == 0) & (expected >= _SURE))
    if len(missing):
        raise AssertionError(f"{name}: token {missing[0]} is kept, and was not drawn.")
    z = chi_square(counts, expected)
    if not z < _DEVIATIONS:
        raise AssertionError(
            f"{name}: frequencies are off by {z:.1f} standard deviations, allowed {_DEVIATIONS}."
        )


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Returns the chi-square statistic as a standard normal number (Wilson and Hilferty 1931).

    Args:
        counts: Draws of each token [V].
        expected: Their expected number [V]. Those below 5 count together.
    """
    large = expected >= 5
    seen = np.append(counts[large], counts[~large].sum())
    due = np.append(expected[large], expected[~large].sum())
    seen, due = seen[due > 0], due[due > 0]
    degrees = len(due) - 1
    if degrees == 0:
        return 0.0
    spread = 2 / (9 * degrees)
    statistic = np.sum((seen - due) ** 2 / due) / degrees
    return float((np.cbrt(statistic) - (1 - spread)) / np.sqrt(spread))
