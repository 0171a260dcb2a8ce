# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The implementations of the losses: their refusals, costs and calls."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from dovetail_kernels.arrays import converts_whole
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.loss import blocked, reference
from dovetail_kernels.loss.call import LossCall, LossInputs, accumulator
from dovetail_kernels.loss.operands import Head, Operands
from dovetail_kernels.loss.tiles import Tiles, choose_tiles


def _prepared(call: LossCall, inputs: LossInputs) -> tuple[Operands, Array, Array]:
    """Returns operands with int32 labels, weights, and weights with NaN for a wrong label."""
    x, w, bias, labels, where = inputs
    acc = accumulator(call.dtype)
    weights = jnp.ones(labels.shape, acc) if where is None else where.astype(acc)
    if labels.dtype.itemsize < 4:  # V may not be representable
        labels = labels.astype(jnp.int32)
    wrong = (labels < 0) | (labels >= call.vocabulary)
    poisoned = jnp.where(wrong & (weights != 0), jnp.nan, weights)
    labels = jnp.where(wrong, 0, labels).astype(jnp.int32)
    return Operands(x, w, bias, labels, weights != 0), weights, poisoned


def tiles_of(call: LossCall, tokens: Any) -> Tiles:
    """Returns the tiles for the tokens of one shard. ValueError if the budget holds none."""
    return choose_tiles(
        tokens=tokens,
        width=call.width,
        vocabulary=call.columns,
        item=accumulator(call.dtype).itemsize,
        operand_item=call.dtype.itemsize,
        budget=call.budget,
        platform=call.device.platform,
    )


def _head(call: LossCall, tokens: Any, *, total: bool, mean: bool) -> Head:
    return Head(
        vocab_axis=call.vocab_axis,
        soft_cap=call.soft_cap,
        temperature=call.temperature,
        total=total,
        mean=mean,
        tiles=tiles_of(call, tokens),
        names=call.vocab_mesh_axes,
    )


def _blocked_cross_entropy(call: LossCall, inputs: LossInputs) -> tuple[Array, ...]:
    operands, weights, poisoned = _prepared(call, inputs)
    head = _head(call, inputs.x.shape[0], total=call.smoothing > 0, mean=False)
    formula = blocked.Formula(
        smoothing=call.smoothing, z_loss=call.z_loss, vocabulary=call.vocabulary
    )
    total, z_sum, correct = blocked.cross_entropy(head, formula, operands, poisoned)
    return total, jnp.sum(weights), z_sum, correct


def _reference_cross_entropy(call: LossCall, inputs: LossInputs) -> tuple[Array, ...]:
    operands, weights, poisoned = _prepared(call, inputs)
    total, z_sum, correct = reference.cross_entropy(call, *operands[:4], poisoned)
    return total, jnp.sum(weights), z_sum, correct


def _blocked_logprobs(call: LossCall, inputs: LossInputs) -> tuple[Array, ...]:
    operands, _, poisoned = _prepared(call, inputs)
    head = _head(call, inputs.x.shape[0], total=False, mean=True)
    stats = blocked.token_stats(head, operands)
    logprob, entropy = stats.label - stats.lse, stats.lse - stats.mean
    return _weighted(poisoned, logprob), _weighted(poisoned, entropy)


def _reference_logprobs(call: LossCall, inputs: LossInputs) -> tuple[Array, ...]:
    operands, _, poisoned = _prepared(call, inputs)
    logprob, entropy = reference.log_probabilities(call, *operands[:4], poisoned)
    return _weighted(poisoned, logprob), _weighted(poisoned, entropy)


def _weighted(weights: Array, values: Array) -> Array:
    return jnp.where(weights == 0, 0, weights * values)


def _logits_bytes(call: LossCall) -> int:
    return call.tokens * call.vocabulary * accumulator(call.dtype).itemsize


def _never(call: LossCall) -> str | None:
    return None


def _kept_whole(call: LossCall) -> str | None:
    if call.vocab_mesh_axes:
        names = ", ".join(call.vocab_mesh_axes)
        return f"its formula needs the whole vocabulary on a device, and w is split over {names}"
    size = 2 * _logits_bytes(call)
    if call.budget is None or size <= call.budget:
        return None
    return f"it keeps all logits and their gradient, {size} bytes, and budget={call.budget}"


def _work(call: LossCall, peak_bytes: int) -> Work:
    """Counts one product. Logits are written once and read once, in tiles too."""
    operands = call.tokens * call.width + call.width * call.vocabulary
    size = operands * call.dtype.itemsize + 2 * _logits_bytes(call) + 4 * call.tokens
    flops = 2 * call.tokens * call.width * call.vocabulary
    return Work(flops=flops, bytes=size, peak_bytes=peak_bytes)


def _blocked_work(call: LossCall) -> Work:
    """Counts a tile's logits three times, or once beside its slice of the head, and its tokens.

    Logits of the whole vocabulary are counted once: a GPU's reductions write none.

    Gradients are formed only in `jax.grad`: see `loss.tiles.tile_bytes` for theirs.
    """
    tiles, item = tiles_of(call, call.tokens), accumulator(call.dtype).itemsize
    logits = tiles.rows * tiles.columns
    beside = 0 if tiles.whole else max(2 * logits, call.width * tiles.columns)
    tile = logits + beside + tiles.rows * call.width
    converted = converts_whole(call.dtype, call.device.platform)
    operands = call.width * (call.tokens + call.columns) if converted else 0
    if call.tokens % max(tiles.rows, 1):  # whole tiles of tokens, a padded copy
        operands += call.tokens * call.width
    return _work(call, item * (tile + operands))


def _reference_work(call: LossCall) -> Work:
    """Counts the logits, before and after a soft cap, and the tokens that are read."""
    copies = 2 if call.soft_cap is not None and call.operation == "linear_cross_entropy" else 1
    tokens = call.tokens * call.width * call.dtype.itemsize
    return _work(call, copies * _logits_bytes(call) + tokens)


CROSS_ENTROPY = (
    Implementation(name="blocked", refuse=_never, work=_blocked_work, run=_blocked_cross_entropy),
    Implementation(
        name="reference", refuse=_kept_whole, work=_reference_work, run=_reference_cross_entropy
    ),
)
LOG_PROBABILITIES = (
    Implementation(name="blocked", refuse=_never, work=_blocked_work, run=_blocked_logprobs),
    Implementation(
        name="reference", refuse=_kept_whole, work=_reference_work, run=_reference_logprobs
    ),
)
