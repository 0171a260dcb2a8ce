# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The implementations of the losses: their refusals, costs and calls."""

import jax.numpy as jnp
from jax import Array

from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.loss import blocked, reference
from dovetail_kernels.loss.call import LossCall, accumulator
from dovetail_kernels.loss.operands import Head, Operands
from dovetail_kernels.loss.tiles import Tiles, choose_tiles


def _prepare(call: LossCall, labels: Array, where: Array | None) -> tuple[Array, Array, Array]:
    """Returns int32 labels, weights, and weights with NaN for a label out of range."""
    acc = accumulator(call.dtype)
    weights = jnp.ones(labels.shape, acc) if where is None else where.astype(acc)
    if labels.dtype.itemsize < 4:  # V may not be representable
        labels = labels.astype(jnp.int32)
    wrong = (labels < 0) | (labels >= call.vocabulary)
    poisoned = jnp.where(wrong & (weights != 0), jnp.nan, weights)
    return jnp.where(wrong, 0, labels).astype(jnp.int32), weights, poisoned


def tiles_of(call: LossCall, tokens: int) -> Tiles:
    """Returns the tiles for the tokens of one shard. ValueError if the budget holds none."""
    return choose_tiles(
        tokens=tokens,
        width=call.width,
        vocabulary=call.vocabulary,
        item=accumulator(call.dtype).itemsize,
        budget=call.budget,
        platform=call.device.platform,
    )


def _head(call: LossCall, tokens: int, *, total: bool, mean: bool) -> Head:
    return Head(
        vocab_axis=call.vocab_axis,
        soft_cap=call.soft_cap,
        temperature=call.temperature,
        total=total,
        mean=mean,
        tiles=tiles_of(call, tokens),
    )


def _blocked_cross_entropy(
    call: LossCall, x: Array, w: Array, bias: Array | None, labels: Array, where: Array | None
) -> tuple[Array, ...]:
    labels, weights, poisoned = _prepare(call, labels, where)
    head = _head(call, x.shape[0], total=call.smoothing > 0, mean=False)
    formula = blocked.Formula(
        smoothing=call.smoothing, z_loss=call.z_loss, vocabulary=call.vocabulary
    )
    operands = Operands(x, w, bias, labels, weights != 0)
    total, z_sum, correct = blocked.cross_entropy(head, formula, operands, poisoned)
    return total, jnp.sum(weights), z_sum, correct


def _reference_cross_entropy(
    call: LossCall, x: Array, w: Array, bias: Array | None, labels: Array, where: Array | None
) -> tuple[Array, ...]:
    labels, weights, poisoned = _prepare(call, labels, where)
    total, z_sum, correct = reference.cross_entropy(call, x, w, bias, labels, poisoned)
    return total, jnp.sum(weights), z_sum, correct


def _blocked_logprobs(
    call: LossCall, x: Array, w: Array, bias: Array | None, labels: Array, where: Array | None
) -> tuple[Array, ...]:
    labels, weights, poisoned = _prepare(call, labels, where)
    head = _head(call, x.shape[0], total=False, mean=True)
    operands = Operands(x, w, bias, labels, weights != 0)
    stats = blocked.token_stats(head, operands)
    logprob, entropy = stats.label - stats.lse, stats.lse - stats.mean
    return _weighted(poisoned, logprob), _weighted(poisoned, entropy)


def _reference_logprobs(
    call: LossCall, x: Array, w: Array, bias: Array | None, labels: Array, where: Array | None
) -> tuple[Array, ...]:
    labels, _, poisoned = _prepare(call, labels, where)
    logprob, entropy = reference.log_probabilities(call, x, w, bias, labels, poisoned)
    return _weighted(poisoned, logprob), _weighted(poisoned, entropy)


def _weighted(weights: Array, values: Array) -> Array:
    return jnp.where(weights == 0, 0, weights * values)


def _logits_bytes(call: LossCall) -> int:
    return call.tokens * call.vocabulary * accumulator(call.dtype).itemsize


def _never(call: LossCall) -> str | None:
    return None


def _over_budget(call: LossCall) -> str | None:
    size = 2 * _logits_bytes(call)
    if call.budget is None or size <= call.budget:
        return None
    return f"it keeps all logits and their gradient, {size} bytes, and budget={call.budget}"


def _work(call: LossCall) -> Work:
    """Counts one product. Logits are written once and read once, in tiles too."""
    operands = call.tokens * call.width + call.width * call.vocabulary
    size = operands * call.dtype.itemsize + 2 * _logits_bytes(call) + 4 * call.tokens
    return Work(flops=2 * call.tokens * call.width * call.vocabulary, bytes=size)


CROSS_ENTROPY = (
    Implementation(name="blocked", refuse=_never, work=_work, run=_blocked_cross_entropy),
    Implementation(name="reference", refuse=_over_budget, work=_work, run=_reference_cross_entropy),
)
LOG_PROBABILITIES = (
    Implementation(name="blocked", refuse=_never, work=_work, run=_blocked_logprobs),
    Implementation(name="reference", refuse=_over_budget, work=_work, run=_reference_logprobs),
)
