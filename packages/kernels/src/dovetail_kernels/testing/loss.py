# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The conformance suite of losses of a linear head, for any function that takes their arguments.

Expected values and gradients are NumPy's in float64, from the operands as rounded to the case's
dtype. What must not be read holds NaN, or a label that is none. Products in less than the dtype's
precision (TF32) fail: set `jax.default_matmul_precision("highest")` where that is the default.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

FEATURES = frozenset(
    {
        "bfloat16",
        "bias",
        "empty",
        "smoothing",
        "soft_cap",
        "vocab_axis",
        "weights",
        "where",
        "z_loss",
    }
)
LOGPROB_FEATURES = frozenset(
    {"bfloat16", "bias", "empty", "soft_cap", "temperature", "vocab_axis", "where"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One call: M tokens, width D, vocabulary V, and options; `needs` are the features it uses.

    where: "none", "mask" (bool) or "weights" (float32), with NaN in x where it is 0.
    exact: small integers, so that equal logits are equal bits in any order of summation.
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
    """NumPy arrays of a case: x and w in its dtype, cotangents for outputs per token."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    labels: np.ndarray
    where: np.ndarray | None
    cotangents: np.ndarray


def cases() -> tuple[Case, ...]:
    """The cases of `linear_cross_entropy`."""
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
    """The cases of `linear_logprobs`."""
    everything = {"soft_cap": 3.0, "temperature": 0.6, "vocab_axis": 0}
    used = frozenset({"bias", "where", *everything})
    return (
        *_shared(),
        _case("temperature", {"temperature"}, options={"temperature": 1.7}),
        _case("everything", used, where="mask", bias=True, options=everything),
    )


def operands(case: Case) -> Operands:
    """The arrays of a case, always the same."""
    tokens, width, vocabulary = case.shape
    rng = np.random.default_rng(list(case.name.encode()))
    dtype = ml_dtypes.bfloat16 if case.dtype == "bfloat16" else np.dtype(case.dtype)
    x, w = rng.standard_normal((tokens, width)), rng.standard_normal((width, vocabulary))
    if case.exact:
        x, w = rng.integers(-1, 2, (tokens, width)), rng.integers(-1, 2, (width, vocabulary))
    labels = rng.integers(0, vocabulary, tokens)
    if case.exact and tokens:  # half of the labels are among the largest, some not the first
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
    """`fn(x, w, labels, **options)` gives CE's four sums, and the gradients of its `sum`.

    Raises:
        AssertionError: naming the case, the error and its bound.
    """
    given = operands(case)
    sums, gradients = _cross_entropy(case, given)
    floats = _floats(given)

    def loss(floats: dict[str, Any]) -> tuple[Any, Any]:
        found = _call(fn, case, given, floats)
        return found.sum, found

    if grad:
        (_, found), by = jax.jit(jax.value_and_grad(loss, has_aux=True))(floats)
        _compare(case, {name: by[name] for name in floats}, gradients)
    else:
        found = jax.jit(loss)(floats)[1]
    _compare(case, {name: getattr(found, name) for name in sums}, sums)


def check_logprobs(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """`fn(x, w, labels, **options)` gives logprob and entropy per token, and their gradients.

    Raises:
        AssertionError: naming the case, the error and its bound.
    """
    given = operands(case)
    outputs, gradients = _log_probabilities(case, given)
    floats = _floats(given)

    def loss(floats: dict[str, Any]) -> tuple[Any, Any]:
        found = _call(fn, case, given, floats)
        a, b = given.cotangents
        return jnp.sum(a * found[0]) + jnp.sum(b * found[1]), found

    if grad:
        (_, found), by = jax.jit(jax.value_and_grad(loss, has_aux=True))(floats)
        _compare(case, {name: by[name] for name in floats}, gradients)
    else:
        found = jax.jit(loss)(floats)[1]
    _compare(case, {"logprob": found[0], "entropy": found[1]}, outputs)


def check_linear_cross_entropy(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """Every case of which `supports` has the features is right; every other is right or refused.

    Refused is a ValueError, NotImplementedError or TypeError. `FEATURES` are those to name.
    """
    _right_or_refused(fn, check, cases(), supports, FEATURES)


def check_linear_logprobs(fn: Callable[..., Any], *, supports: Collection[str]) -> None:
    """The same for log-probabilities and entropy, with `LOGPROB_FEATURES`."""
    _right_or_refused(fn, check_logprobs, logprob_cases(), supports, LOGPROB_FEATURES)


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


def _right_or_refused(
    fn: Callable[..., Any],
    one: Callable[[Callable[..., Any], Case], None],
    table: tuple[Case, ...],
    supports: Collection[str],
    features: frozenset[str],
) -> None:
    unknown = set(supports) - features
    if unknown:
        raise ValueError(
            f"supports must be features, got {sorted(unknown)}. Use some of {sorted(features)}."
        )
    for case in table:
        if case.needs <= set(supports):
            one(fn, case)
            continue
        try:
            one(fn, case)
        except (ValueError, NotImplementedError, TypeError):
            continue


def _floats(given: Operands) -> dict[str, jax.Array]:
    floats = {"x": jnp.asarray(given.x), "w": jnp.asarray(given.w)}
    return floats if given.bias is None else {**floats, "bias": jnp.asarray(given.bias)}


def _call(fn: Callable[..., Any], case: Case, given: Operands, floats: dict[str, Any]) -> Any:
    options = dict(case.options)
    if given.where is not None:
        options["where"] = jnp.asarray(given.where)
    if given.bias is not None:
        options["bias"] = floats["bias"]
    return fn(floats["x"], floats["w"], jnp.asarray(given.labels), **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Logits:
    """In float64: clean x, w [D, V], logits, their lse, softmax, one-hot labels, weights."""

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
    one = _logits(case, given)
    smooth, z_loss = case.options.get("smoothing", 0.0), case.options.get("z_loss", 0.0)
    nll = one.lse[:, None] - one.z
    target = (1 - smooth) * one.hot + smooth / one.z.shape[1]
    hits = one.z.argmax(axis=1) == one.hot.argmax(axis=1) if len(one.z) else np.zeros(0)
    each = {
        "sum": (target * nll).sum(axis=1) + z_loss * one.lse**2,
        "count": np.ones(len(one.z)),
        "z_sum": one.lse**2,
        "correct": hits,
    }
    sums = {name: np.asarray(np.sum(one.weights * value)) for name, value in each.items()}
    by_z = one.weights[:, None] * ((1 + 2 * z_loss * one.lse)[:, None] * one.p - target)
    return sums, _by_operands(case, one, by_z)


def _log_probabilities(
    case: Case, given: Operands
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    one = _logits(case, given)
    logps = one.z - one.lse[:, None]
    entropy = -(one.p * logps).sum(axis=1)
    outputs = {
        "logprob": one.weights * (logps * one.hot).sum(axis=1),
        "entropy": one.weights * entropy,
    }
    a, b = (one.weights * given.cotangents.astype(np.float64))[:, :, None]
    by_z = a * (one.hot - one.p) - b * one.p * (logps + entropy[:, None])
    return outputs, _by_operands(case, one, by_z)


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
    """Within epsilon of the dtype times the lengths summed over, of the largest number expected.

    That number counts as 0.1 at least: a gradient of 0 is the difference of two numbers near 1.
    bfloat16: only its roundings count, of the logits' gradient and of the result, twice for a
    scaled one; the sums are in float32.
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
