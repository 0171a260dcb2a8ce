# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance suite of losses of a linear head, for any function with their arguments.

Expected values and gradients come from NumPy in float64, from the operands rounded to the case's
dtype. Unread tokens hold NaN and an invalid label. Products in less than the dtype's precision
(TF32) fail; set `jax.default_matmul_precision("highest")` if that is the default.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dovetail_kernels.testing.suite import right_or_refused

FEATURES = frozenset(
    {
        *("bfloat16", "bias", "empty", "smoothing", "soft_cap"),
        *("vocab_axis", "weights", "where", "z_loss"),
    }
)
LOGPROB_FEATURES = frozenset(
    {"bfloat16", "bias", "empty", "soft_cap", "temperature", "vocab_axis", "where"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One call: M tokens, width D, vocabulary V and options.

    Attributes:
        name: Name of the case. It seeds the arrays.
        needs: Features of the case.
        shape: (M, D, V).
        dtype: Dtype of x and w.
        where: "none", "mask" (bool) or "weights" (float32). x is NaN for tokens with 0.
        bias: Whether the call has a bias.
        exact: Small integers, so equal logits have equal bits in any order of summation.
        options: Other options of the call.
    """

    name: str
    needs: frozenset[str] = frozenset()
    shape: tuple[int, int, int] = (19, 8, 131)
    dtype: str = "float32"
    where: str = "none"
    bias: bool = False
    exact: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
    """NumPy arrays of a case.

    Attributes:
        x: Inputs of the head, in the case's dtype.
        w: Weights of the head, in the case's dtype.
        bias: Bias, float32[V], or None.
        labels: Token ids, int32[M].
        where: Mask or weights [M], or None.
        cotangents: Cotangents for outputs per token, float32[2, M].
    """

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    labels: np.ndarray
    where: np.ndarray | None
    cotangents: np.ndarray


def cases() -> tuple[Case, ...]:
    """Returns the cases of `linear_cross_entropy`."""
    everything = {"soft_cap": 3.0, "z_loss": 1e-2, "smoothing": 0.1, "vocab_axis": 0}
    used = frozenset({"bias", "weights", *everything})
    return (
        *_shared(),
        _case("weights", {"weights"}, where="weights"),
        _case("z_loss", {"z_loss"}, options={"z_loss": 0.03}),
        _case("smoothing", {"smoothing"}, options={"smoothing": 0.2}),
        _case("everything", used, where="weights", bias=True, options=everything),
        _case(
            "everything in bfloat16",
            used | {"bfloat16"},
            where="weights",
            bias=True,
            dtype="bfloat16",
            options=everything,
        ),
    )


def logprob_cases() -> tuple[Case, ...]:
    """Returns the cases of `linear_logprobs`."""
    everything = {"soft_cap": 3.0, "temperature": 0.6, "vocab_axis": 0}
    used = frozenset({"bias", "where", *everything})
    return (
        *_shared(),
        _case("temperature", {"temperature"}, options={"temperature": 1.7}),
        _case("everything", used, where="mask", bias=True, options=everything),
    )


def operands(case: Case) -> Operands:
    """Returns the arrays of a case, always the same."""
    tokens, width, vocabulary = case.shape
    rng = np.random.default_rng(list(case.name.encode()))
    dtype = ml_dtypes.bfloat16 if case.dtype == "bfloat16" else np.dtype(case.dtype)
    x, w = rng.standard_normal((tokens, width)), rng.standard_normal((width, vocabulary))
    if case.exact:
        x, w = rng.integers(-1, 2, (tokens, width)), rng.integers(-1, 2, (width, vocabulary))
    labels = rng.integers(0, vocabulary, tokens)
    if case.exact and tokens:  # half of the labels have a largest logit, some not the first
        logits = x @ w
        ties = [np.flatnonzero(row == row.max()) for row in logits]
        labels[::2] = [rng.choice(tie) for tie in ties[::2]]
        labels[::4] = [tie[0] for tie in ties[::4]]
    x, read, where = x.astype(dtype), rng.random(tokens) < 0.6, None
    if case.where != "none":
        x[~read], labels[~read], where = np.nan, -100, read
    if case.where == "weights":
        where = (read * rng.uniform(0.5, 2, tokens)).astype(np.float32)
    return Operands(
        x=x,
        w=(w if case.options.get("vocab_axis", 1) == 1 else w.T).astype(dtype),
        bias=rng.standard_normal(vocabulary).astype(np.float32) if case.bias else None,
        labels=labels.astype(np.int32),
        where=where,
        cotangents=rng.standard_normal((2, tokens)).astype(np.float32),
    )


def check(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Checks the four sums of `CE`, and the gradients of its `sum`.

    Args:
        fn: Called as `fn(x, w, labels, **options)`.
        case: The case.
        grad: Whether gradients are checked too.

    Raises:
        AssertionError: A value exceeds its bound. Names the case, the error and the bound.
    """
    given = operands(case)
    sums, gradients = _cross_entropy(case, given)
    result = _result(fn, case, given, lambda result: result.sum, gradients if grad else None)
    _compare(case, {name: getattr(result, name) for name in sums}, sums)


def check_logprobs(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Checks logprob and entropy per token, and their gradients.

    Args:
        fn: Called as `fn(x, w, labels, **options)`.
        case: The case.
        grad: Whether gradients are checked too.

    Raises:
        AssertionError: A value exceeds its bound. Names the case, the error and the bound.
    """
    given = operands(case)
    outputs, gradients = _log_probabilities(case, given)
    a, b = given.cotangents

    def loss(result: Any) -> Any:
        return jnp.sum(a * result[0]) + jnp.sum(b * result[1])

    result = _result(fn, case, given, loss, gradients if grad else None)
    _compare(case, {"logprob": result[0], "entropy": result[1]}, outputs)


def check_linear_cross_entropy(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """Checks a function on every case of `linear_cross_entropy`.

    Cases with all their features in `supports` must be right. Every other case must be right too,
    or raise ValueError, NotImplementedError or TypeError. `FEATURES` lists the features.

    Raises:
        ValueError: `supports` names an unknown feature.
        AssertionError: An answer is wrong, or a supported case is refused.

    Example:

        >>> from dovetail_kernels import linear_cross_entropy
        >>> from dovetail_kernels.testing import check_linear_cross_entropy
        >>> def without_options(x, w, labels):
        ...     return linear_cross_entropy(x, w, labels, impl="reference")
        >>> check_linear_cross_entropy(without_options, supports={"bfloat16"})
    """
    check_case = functools.partial(check, fn)
    right_or_refused(check_case, cases(), supports=supports, features=FEATURES)


def check_linear_logprobs(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """Checks a function on every case of `linear_logprobs`.

    Rules and errors are those of `check_linear_cross_entropy`. `LOGPROB_FEATURES` lists the
    features.
    """
    check_case = functools.partial(check_logprobs, fn)
    right_or_refused(check_case, logprob_cases(), supports=supports, features=LOGPROB_FEATURES)


def _shared() -> tuple[Case, ...]:
    return (
        _case("plain"),
        _case("ties", exact=True, shape=(24, 3, 131)),
        _case("one column", shape=(3, 5, 1)),
        _case("one token", shape=(1, 3, 517)),
        _case("no token", {"empty"}, shape=(0, 4, 9)),
        _case("mask", {"where"}, where="mask"),
        _case("bias", {"bias"}, bias=True),
        _case("soft_cap", {"soft_cap"}, options={"soft_cap": 2.0}),
        _case("tied", {"vocab_axis"}, options={"vocab_axis": 0}),
        _case("bfloat16", {"bfloat16"}, dtype="bfloat16", shape=(40, 16, 300)),
    )


def _case(name: str, needs: Collection[str] = (), **facts: Any) -> Case:
    return Case(name=name, needs=frozenset(needs), **facts)


def _result(
    fn: Callable[..., Any],
    case: Case,
    given: Operands,
    loss: Callable[[Any], Any],
    gradients: Mapping[str, np.ndarray] | None,
) -> Any:
    """Returns the result of `fn`, and compares the gradients of its `loss` if they are given."""
    options = dict(case.options)
    if given.where is not None:
        options["where"] = jnp.asarray(given.where)
    arrays = {"x": given.x, "w": given.w, "bias": given.bias}
    floats = {name: jnp.asarray(a) for name, a in arrays.items() if a is not None}

    def call(floats: dict[str, Any]) -> tuple[Any, Any]:
        more = {"bias": floats["bias"]} if "bias" in floats else {}
        result = fn(floats["x"], floats["w"], jnp.asarray(given.labels), **options, **more)
        return loss(result), result

    if gradients is None:
        return jax.jit(call)(floats)[1]
    (_, result), by = jax.jit(jax.value_and_grad(call, has_aux=True))(floats)
    _compare(case, {name: by[name] for name in floats}, gradients)
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Logits:
    """Values in float64: clean x, w [D, V], logits, their lse, softmax, one-hot labels, weights."""

    x: np.ndarray
    w: np.ndarray
    z: np.ndarray
    lse: np.ndarray
    p: np.ndarray
    hot: np.ndarray
    weights: np.ndarray


def _logits(case: Case, given: Operands) -> _Logits:
    weights = np.ones(len(given.x)) if given.where is None else given.where.astype(np.float64)
    x = np.where(weights[:, None] != 0, given.x.astype(np.float64), 0)
    w = given.w.astype(np.float64)
    w = w if case.options.get("vocab_axis", 1) == 1 else w.T
    z = x @ w if given.bias is None else x @ w + given.bias.astype(np.float64)
    cap = case.options.get("soft_cap")
    z = (z if cap is None else cap * np.tanh(z / cap)) / case.options.get("temperature", 1.0)
    top = z.max(axis=1, initial=-np.inf) if len(z) else np.zeros(0)
    lse = top + np.log(np.exp(z - top[:, None]).sum(axis=1))
    hot = np.arange(z.shape[1]) == np.where(weights != 0, given.labels, 0)[:, None]
    return _Logits(x=x, w=w, z=z, lse=lse, p=np.exp(z - lse[:, None]), hot=hot, weights=weights)


def _cross_entropy(
    case: Case, given: Operands
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    logits = _logits(case, given)
    smooth, z_loss = case.options.get("smoothing", 0.0), case.options.get("z_loss", 0.0)
    nll = logits.lse[:, None] - logits.z
    target = (1 - smooth) * logits.hot + smooth / logits.z.shape[1]
    hits = logits.z.argmax(axis=1) == logits.hot.argmax(axis=1) if len(logits.z) else np.zeros(0)
    each = {
        "sum": (target * nll).sum(axis=1) + z_loss * logits.lse**2,
        "count": np.ones(len(logits.z)),
        "z_sum": logits.lse**2,
        "correct": hits,
    }
    sums = {name: np.asarray(np.sum(logits.weights * value)) for name, value in each.items()}
    by_z = logits.weights[:, None] * ((1 + 2 * z_loss * logits.lse)[:, None] * logits.p - target)
    return sums, _by_operands(case, logits, by_z)


def _log_probabilities(
    case: Case, given: Operands
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    logits = _logits(case, given)
    logps = logits.z - logits.lse[:, None]
    entropy = -(logits.p * logps).sum(axis=1)
    outputs = {
        "logprob": logits.weights * (logps * logits.hot).sum(axis=1),
        "entropy": logits.weights * entropy,
    }
    a, b = (logits.weights * given.cotangents.astype(np.float64))[:, :, None]
    by_z = a * (logits.hot - logits.p) - b * logits.p * (logps + entropy[:, None])
    return outputs, _by_operands(case, logits, by_z)


def _by_operands(case: Case, one: _Logits, by_z: np.ndarray) -> dict[str, np.ndarray]:
    cap, temperature = case.options.get("soft_cap"), case.options.get("temperature", 1.0)
    if cap is not None:
        by_z = by_z * (1 - (one.z * temperature / cap) ** 2)
    by_z = by_z / temperature
    by_w = one.x.T @ by_z
    return {
        "x": by_z @ one.w.T,
        "w": by_w if case.options.get("vocab_axis", 1) == 1 else by_w.T,
        "bias": by_z.sum(axis=0),
    }


def _compare(case: Case, found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> None:
    """Compares with a bound of the dtype's epsilon times the summed lengths.

    The error is relative to the largest expected number, at least 0.1: a gradient of 0 is the
    difference of two numbers near 1. For bfloat16 only its roundings count, of the logits' gradient
    and of the result, twice for a scaled one; the sums are in float32.
    """
    tokens, width, _ = case.shape
    bound = 2.0**-6 if case.dtype == "bfloat16" else (tokens + width + 16) * 2.0**-23
    for name, value in found.items():
        got, right = np.asarray(value, np.float64), expected[name]
        assert got.shape == right.shape, f"{case.name}: {name} is {got.shape}, not {right.shape}"
        if not got.size:
            continue
        error = np.max(np.abs(got - right)) / max(np.max(np.abs(right)), 0.1)
        assert error <= bound, (
            f"{case.name}: {name} is off by {error:.3g}, the bound is {bound:.3g}"
        )
