# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance cases for a router, with expected values in float64 NumPy.

For any function called as `fn(logits, **options)` with options of `dovetail_kernels.route_tokens`.
The `needs` of a case name its options beyond a softmax, normalised over the chosen experts:

    sigmoid, unnormalised, bias, groups, scale    that option
    bfloat16    logits of that dtype; scores and weights are float32 still
    underflow   the scores of all the chosen experts are 0 in float32, their weights are not
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.grouped.routing import ExpertGroups
from dovetail_kernels.testing.suite import right_or_refused

FEATURES = frozenset(
    {"sigmoid", "unnormalised", "bias", "groups", "scale", "bfloat16", "underflow"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Logits [tokens, count] with options of `route_tokens`.

    Attributes:
        name: Name for messages. It seeds the random numbers.
        options: Options of the call, without the bias. A bias is drawn if `needs` has it.
        needs: Features of the case, among `FEATURES`.
        tokens: Number of tokens.
        count: Number of experts.
        whole: Round the logits to whole numbers, so that many are equal.
        shift: Added to the logits.
    """

    name: str
    options: Mapping[str, Any]
    needs: frozenset[str] = frozenset()
    tokens: int = 13
    count: int = 12
    whole: bool = False
    shift: float = 0.0


def cases() -> tuple[Case, ...]:
    """Returns every case of the suite."""
    top2, best = ExpertGroups(count=4, k=2), ExpertGroups(count=3, k=1, score="max")
    sigmoid = {"score": "sigmoid", "k": 3}
    return (
        Case(name="softmax", options={"k": 3}),
        Case(name="one expert", options={"k": 1}),
        Case(name="every expert", options={"k": 12}),
        Case(name="ties", options={"k": 4}, whole=True),
        _case("softmax, not normalised", {"k": 3, "normalise": False}, "unnormalised"),
        _case("scale", {"k": 3, "scale": 2.5}, "scale"),
        _case("bfloat16", {"k": 3}, "bfloat16"),
        _case("sigmoid", sigmoid, "sigmoid"),
        _case("sigmoid, not normalised", sigmoid | {"normalise": False}, "sigmoid", "unnormalised"),
        _case("bias", sigmoid, "sigmoid", "bias"),
        _case("groups by their best", {"k": 3, "groups": best}, "groups"),
        _case(
            "as DeepSeek-V3",
            sigmoid | {"groups": top2, "scale": 2.5},
            *("sigmoid", "bias", "groups", "scale"),
        ),
        _case("underflow", sigmoid, "sigmoid", "underflow", shift=-200.0),
    )


def _case(name: str, options: Mapping[str, Any], *needs: str, shift: float = 0.0) -> Case:
    return Case(name=name, options=options, needs=frozenset(needs), shift=shift)


def check_route_tokens(
    fn: Callable[..., Any], *, supports: Collection[str], grad: bool = True
) -> None:
    """Checks every case: correct if `supports` holds its needs, else correct or refused.

    A refusal is a ValueError, TypeError or NotImplementedError.

    Args:
        fn: The function under test, called as `route_tokens`.
        supports: Features it must compute correctly, among `FEATURES`.
        grad: Check gradients too.

    Raises:
        AssertionError: A result is wrong, or a supported case is refused.
        ValueError: `supports` has an unknown feature.
    """
    check_case = functools.partial(check, fn, grad=grad)
    right_or_refused(check_case, cases(), supports=supports, features=FEATURES)


def check(fn: Callable[..., Any], case: Case, *, grad: bool = True) -> None:
    """Checks the experts, weights and gradient of one case.

    Args:
        fn: The function under test, called as `route_tokens`.
        case: The case.
        grad: Check the gradient of the logits too.

    Raises:
        AssertionError: A result is wrong.
    """
    logits, bias, g = draw(case)
    options: dict[str, Any] = dict(case.options) | ({} if bias is None else {"bias": bias})
    experts, weights, d_logits = oracle(np.asarray(logits, np.float64), g, **options)

    def run(logits: jax.Array) -> Any:
        return fn(logits, **options)

    @jax.jit
    def pulled(logits: jax.Array, g: jax.Array) -> Any:
        weights, pull, experts = jax.vjp(run, logits, has_aux=True)
        return weights, experts, pull(g)[0]

    # First the types: a cotangent of another type than the weights would be JAX's error.
    kinds = [f"{array.dtype}{list(array.shape)}" for array in jax.eval_shape(run, logits)]
    if kinds != [f"{dtype}{list(experts.shape)}" for dtype in ("float32", "int32")]:
        raise AssertionError(
            f"{case.name}: weights must be float32 and experts int32 {list(experts.shape)}, got "
            f"{' and '.join(kinds)}"
        )
    gradient = None
    if grad:
        got_weights, got_experts, gradient = pulled(logits, jnp.asarray(g, jnp.float32))
    else:
        got_weights, got_experts = jax.jit(run)(logits)
    if (np.asarray(got_experts) != experts).any():
        raise AssertionError(f"{case.name}: experts must be {experts}, got {got_experts}")
    scale = case.options.get("scale", 1.0)
    # Exponentials and sums of `count` terms in float32; scores are at most 1. Logits far from 0
    # are less exact themselves: by eps times their size.
    fine = 4 * (case.count + abs(case.shift)) * float(np.finfo(np.float32).eps) * scale
    _close(case, "weights", got_weights, weights, fine)
    if gradient is not None:
        # Gradients are rounded to the dtype of the logits.
        coarse = fine + float(jnp.finfo(logits.dtype).eps) * abs(d_logits).max()
        _close(case, "gradient", gradient, d_logits, coarse)


def draw(case: Case) -> tuple[jax.Array, np.ndarray | None, np.ndarray]:
    """Draws the logits, the bias or None, and the cotangent of the weights."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    logits = rng.standard_normal((case.tokens, case.count)) * 1.5 + case.shift
    # Not -0.0, which some orders put below 0.0.
    logits = np.round(logits) + 0.0 if case.whole else logits
    dtype = jnp.bfloat16 if "bfloat16" in case.needs else jnp.float32
    bias = rng.standard_normal(case.count).astype(np.float32) if "bias" in case.needs else None
    g = rng.standard_normal((case.tokens, case.options["k"])).astype(np.float32)
    return jnp.asarray(logits.astype(dtype)), bias, g.astype(np.float64)


def oracle(
    logits: np.ndarray,
    g: np.ndarray,
    *,
    k: int,
    score: str = "softmax",
    bias: np.ndarray | None = None,
    groups: ExpertGroups | None = None,
    normalise: bool = True,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the expected result of `route_tokens` and its gradient.

    Args:
        logits: Router logits [tokens, E].
        g: Cotangent of the weights [tokens, k].
        k: As in `route_tokens`, like all other arguments.
        score: "softmax" or "sigmoid".
        bias: Added to the scores [E] for the choice only.
        groups: Restricts the choice to the best groups.
        normalise: Divide the weights by the sum of the chosen scores.
        scale: Factor of the weights.

    Returns:
        (experts, weights, gradient of logits): experts are int32, the others float64.
    """
    if score == "softmax":
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-logits))
    selection = scores if bias is None else scores + bias
    if groups is not None:
        selection = np.where(_kept(selection, groups), selection, -np.inf)
    # Stable: of equal merits the lower index comes first.
    experts = np.argsort(-selection, axis=-1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, experts, axis=-1)
    total = weights.sum(-1, keepdims=True) if normalise else 1.0
    weights = weights / total
    d_scores = np.zeros_like(logits)
    # d (s_j / Σ s) = (g_j - Σ g w) / Σ s
    mean = (g * weights).sum(-1, keepdims=True) if normalise else 0.0
    np.put_along_axis(d_scores, experts, (g - mean) / total, axis=-1)
    if score == "softmax":
        d_logits = scores * (d_scores - (d_scores * scores).sum(-1, keepdims=True))
    else:
        d_logits = scores * (1 - scores) * d_scores
    return experts.astype(np.int32), weights * scale, d_logits * scale


def _kept(selection: np.ndarray, groups: ExpertGroups) -> np.ndarray:
    grouped = selection.reshape(len(selection), groups.count, -1)
    best = np.sort(grouped, axis=-1)[..., ::-1]
    worth = best[..., :2].sum(-1) if groups.score == "top2" else best[..., 0]
    kept = np.zeros(worth.shape, bool)
    np.put_along_axis(kept, np.argsort(-worth, axis=-1, kind="stable")[:, : groups.k], True, -1)
    return np.repeat(kept, grouped.shape[-1], axis=-1)


def _close(case: Case, name: str, got: Any, expected: np.ndarray, bound: float) -> None:
    error = abs(np.asarray(got, np.float64) - expected)
    # Not `error > bound`, which a NaN would pass.
    if not (error <= bound).all():
        raise AssertionError(f"{case.name}: {name} off by {error.max()}, allowed {bound}")
