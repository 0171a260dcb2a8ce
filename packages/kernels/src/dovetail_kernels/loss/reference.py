# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The losses by their formulas, with all logits in memory."""

import jax
import jax.numpy as jnp
from jax import Array

from dovetail_kernels.loss.call import LossCall, accumulator
from dovetail_kernels.precision import product


def cross_entropy(
    call: LossCall, x: Array, w: Array, bias: Array | None, labels: Array, weights: Array
) -> tuple[Array, Array, Array]:
    """Sums of the loss, of lse^2 and of hits, each times `weights`.

    Args:
        call: The call.
        x: Inputs of the head [M, D].
        w: Weights of the head.
        bias: Added to the logits [V], or None.
        labels: Token ids [M].
        weights: Weight of each token [M]. A token with 0 is not read.
    """
    read = weights != 0
    z, labels = _logits(call, x, w, bias, read), jnp.where(read, labels, 0)
    lse = jax.nn.logsumexp(z, axis=1)
    loss = lse - (1 - call.smoothing) * _at(z, labels)
    if call.smoothing:
        loss = loss - call.smoothing * jnp.mean(z, axis=1)
    if call.z_loss:
        loss = loss + call.z_loss * jnp.square(lse)
    hits = jnp.argmax(z, axis=1).astype(jnp.int32) == labels
    total = jnp.sum(jnp.where(read, weights * loss, 0))
    z_sum = jnp.sum(jnp.where(read, weights * jnp.square(lse), 0))
    correct = jnp.sum(jnp.where(read, weights * hits.astype(weights.dtype), 0))
    return total, _without_gradient(z_sum), jax.lax.stop_gradient(correct)


def log_probabilities(
    call: LossCall, x: Array, w: Array, bias: Array | None, labels: Array, weights: Array
) -> tuple[Array, Array]:
    """log p(label) and -sum_k p_k log p_k of each token, before `weights`.

    Args:
        call: The call.
        x: Inputs of the head [M, D].
        w: Weights of the head.
        bias: Added to the logits [V], or None.
        labels: Token ids [M].
        weights: A token with weight 0 is not read [M].
    """
    read = weights != 0
    z, labels = _logits(call, x, w, bias, read), jnp.where(read, labels, 0)
    logps = jax.nn.log_softmax(z, axis=1)
    each = jnp.where(logps == -jnp.inf, 0, jnp.exp(logps) * logps)
    return _at(logps, labels), -jnp.sum(each, axis=1)


def _logits(call: LossCall, x: Array, w: Array, bias: Array | None, read: Array) -> Array:
    acc = accumulator(x.dtype)
    x = jnp.where(read[:, None], x, jnp.zeros((), x.dtype))
    head = w if call.vocab_axis == 1 else w.T
    z = product("md,dv->mv", x, head, dtype=x.dtype)
    if bias is not None:
        z = z + bias.astype(acc)[None]
    if call.soft_cap is not None:
        z = call.soft_cap * jnp.tanh(z / call.soft_cap)
    return z / call.temperature


def _at(z: Array, labels: Array) -> Array:
    return jnp.take_along_axis(z, labels[:, None], axis=1)[:, 0]


@jax.custom_jvp
def _without_gradient(value: Array) -> Array:
    """Returns `value` with gradient NaN: no implementation gives it, and 0 would hide that."""
    return value


@_without_gradient.defjvp
def _without_gradient_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """The tangent, and the cotangent, are inf - inf = NaN, but 0 for 0: linear, as JAX requires.

    Not a `custom_vjp`, which has no forward mode.
    """
    (value,), (tangent,) = primals, tangents
    most = jnp.finfo(value.dtype).max.item()  # three times: the least number becomes inf
    return _without_gradient(value), tangent * most * most * most - tangent * most * most * most
