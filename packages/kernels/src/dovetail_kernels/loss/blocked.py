# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The losses over tiles of logits, with their gradients.

A sum over tokens has a scalar cotangent. So `cross_entropy` forms both gradients in its forward
rule, while each tile of logits is in memory: three products in all. Recomputation in the backward
pass would take four. Only requested gradients are formed. Outputs per token have one cotangent
each, not known in the forward pass. `token_stats` keeps two or three numbers per token and forms
the logits again.

JAX may run one traced forward rule for different sets of differentiated arguments, and requires the
same tree of residuals each time (otherwise it fails with "foreach() argument 2 is longer").
Gradients that are not formed are therefore arrays of shape [0], not None.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from dovetail_kernels.derivatives import INSTEAD, first_order, reverse_mode
from dovetail_kernels.loss import rows
from dovetail_kernels.loss.operands import Gradients, Head, Operands, RowStats, Wanted

_once_cross_entropy = functools.partial(first_order, "linear_cross_entropy", INSTEAD)
_once_logprobs = functools.partial(first_order, "linear_logprobs", INSTEAD)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formula:
    """weight ((1 - smoothing) (lse - z_y) + smoothing (lse - mean_k z_k) + z_loss lse^2).

    Attributes:
        smoothing: Label smoothing.
        z_loss: Factor of lse^2.
        vocabulary: Number of columns.
    """

    smoothing: float
    z_loss: float
    vocabulary: Any

    def __call__(self, stats: RowStats, weights: Array) -> Array:
        loss = stats.lse - (1 - self.smoothing) * stats.label
        if stats.total is not None:
            loss = loss - (self.smoothing / self.vocabulary) * stats.total
        if self.z_loss:
            loss = loss + self.z_loss * jnp.square(stats.lse)
        return jnp.where(weights == 0, 0, weights * loss)


@functools.partial(jax.jit, static_argnums=(0, 1))
def cross_entropy(
    head: Head, formula: Formula, operands: Operands, weights: Array
) -> tuple[Array, Array, Array]:
    """Sums over tokens: `formula`, weight lse^2, and weight [y has the largest logit].

    Args:
        head: The head and its tiles.
        formula: Loss of each token.
        operands: Arrays of the loss.
        weights: Weight of each token.
    """
    operands, weights = reverse_mode("linear_cross_entropy", (operands, weights))
    return _cross_entropy(head, formula, operands, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _cross_entropy(
    head: Head, formula: Formula, operands: Operands, weights: Array
) -> tuple[Array, Array, Array]:
    stats, best = rows.stats_of(head, operands)
    return _sums(formula, operands, stats, best, weights)


def _sums(
    formula: Formula, operands: Operands, stats: RowStats, best: Array, weights: Array
) -> tuple[Array, Array, Array]:
    z = jnp.where(weights == 0, 0, weights * jnp.square(stats.lse))
    hits = weights * (best == operands.labels).astype(weights.dtype)
    return jnp.sum(formula(stats, weights)), jnp.sum(z), jnp.sum(hits)


def _cross_entropy_forward(
    head: Head, formula: Formula, operands: Any, weights: Any
) -> tuple[tuple[Array, Array, Array], tuple[Gradients, Array]]:
    given, wanted = _given(operands)
    given, factors = _once_cross_entropy((given, weights.value))
    stats, best, formed = rows.stats_and_gradients(head, given, formula, factors, wanted=wanted)
    each = jnp.where(factors == 0, 0, formula(stats, jnp.ones_like(factors)))
    return _sums(formula, given, stats, best, factors), (_filled(formed), each)


def _cross_entropy_backward(
    head: Head, formula: Formula, residuals: tuple[Gradients, Array], cotangents: Any
) -> tuple[Operands, Array]:
    formed, each = residuals
    by_sum, by_z, _ = _once_cross_entropy(tuple(_dense(cotangent) for cotangent in cotangents))
    # Only the gradients of `sum` were formed. A cotangent of z_sum therefore gives NaN.
    scale = jnp.where(by_z == 0, by_sum, jnp.nan)

    def scaled(gradient: Array) -> Array:
        return (gradient.astype(scale.dtype) * scale).astype(gradient.dtype)

    return _by_operands(jax.tree.map(scaled, _formed(formed))), each * scale


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward, symbolic_zeros=True)


@functools.partial(jax.jit, static_argnums=0)
def token_stats(head: Head, operands: Operands) -> RowStats:
    """Returns the `RowStats` of each token, differentiable by x, w and bias."""
    return _token_stats(head, reverse_mode("linear_logprobs", operands))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _token_stats(head: Head, operands: Operands) -> RowStats:
    return rows.stats_of(head, operands)[0]


def _token_stats_forward(head: Head, operands: Any) -> tuple[RowStats, tuple]:
    given, wanted = _given(operands)
    given = _once_logprobs(given)
    stats, _ = rows.stats_of(head, given)
    marks = Gradients(*(jnp.zeros(1) if requested else None for requested in wanted))
    return stats, (given, stats, _filled(marks))


def _token_stats_backward(head: Head, residuals: tuple, cotangents: RowStats) -> tuple[Operands]:
    operands, stats, marks = residuals
    wanted = Wanted(*(mark is not None for mark in _formed(marks)))
    by = _once_logprobs(jax.tree.map(_dense, cotangents, is_leaf=_is_symbolic))
    return (_by_operands(rows.gradients(head, operands, stats, by, wanted=wanted)),)


_token_stats.defvjp(_token_stats_forward, _token_stats_backward, symbolic_zeros=True)


def _given(operands: Any) -> tuple[Operands, Wanted]:
    """Returns the arrays, and a flag for each differentiated one."""
    x, w, bias, labels, read = operands
    wanted = Wanted(x=x.perturbed, w=w.perturbed, bias=bias is not None and bias.perturbed)
    values = Operands(
        x.value, w.value, None if bias is None else bias.value, labels.value, read.value
    )
    return values, wanted


def _filled(gradients: Gradients) -> Gradients:
    """Replaces each gradient that is not formed by an array of shape [0], a shape none has."""
    return Gradients(*(jnp.zeros(0) if gradient is None else gradient for gradient in gradients))


def _formed(filled: Gradients) -> Gradients:
    """The inverse of `_filled`."""
    return Gradients(
        *(None if gradient is None or gradient.shape == (0,) else gradient for gradient in filled)
    )


def _by_operands(found: Gradients) -> Operands:
    """Returns gradients as a cotangent of `Operands`, with None for zero."""
    absent: Any = None
    x: Any = found.x
    w: Any = found.w
    return Operands(x=x, w=w, bias=found.bias, labels=absent, read=absent)


def _is_symbolic(cotangent: Any) -> bool:
    return isinstance(cotangent, SymbolicZero)


def _dense(cotangent: Any) -> Array:
    return jnp.zeros(cotangent.shape, cotangent.dtype) if _is_symbolic(cotangent) else cotangent
