# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Per-token softmax statistics and their gradients, computed tile by tile over the vocabulary.

Every loss here is a formula of four numbers per token, from its logits z and its label y:

    lse = log(sum_k exp z_k)    label = z_y    total = sum_k z_k    mean = sum_k p_k z_k

with p = softmax(z). Given the derivatives of the loss by each (dlse, dlabel, dtotal, dmean),

    dz_k = dlse p_k + dlabel [k = y] + dtotal + dmean p_k (1 + z_k - mean)

This needs z once more, but no other pass over the vocabulary. So cross-entropy, smoothing, z-loss,
log-probabilities and entropy are formulas on numbers per token, and this file contains none of
them.

A tile of tokens takes every n-th token, not neighbours. If a mesh shards tokens, the tile is then
sharded alike, and cutting it moves no data between devices. The last tile of columns overlaps the
one before it, and repeated columns count as -inf. The head is never padded, because a padded column
with a logit of 0 would count. A tile of the whole vocabulary needs no loop over columns.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from dovetail_kernels.costs_in_names import recomputed, trips
from dovetail_kernels.loss.call import accumulator
from dovetail_kernels.loss.operands import Gradients, Head, Operands, RowStats, Wanted
from dovetail_kernels.loss.shards import ColumnSums, combine, first_column, sum_over
from dovetail_kernels.mesh import varies, vary_over, varying
from dovetail_kernels.precision import product
from dovetail_kernels.symbolic import is_symbolic


def stats_of(head: Head, operands: Operands) -> tuple[RowStats, Array]:
    """Returns RowStats [tokens] and the first index of each largest logit, by one product."""
    cut = _cut_operands(head, operands)

    def step(i: Array, per_token: tuple[RowStats, Array]) -> tuple[RowStats, Array]:
        stats, best, _ = _forward(head, _tile(cut, i), None)
        return _put(per_token, (stats, best), i)

    best = jnp.zeros(cut.labels.shape, jnp.int32)
    start = vary_over(_token_axes(head, operands), (_no_stats(head, cut), best))
    return _join(_over_tokens(head, operands, step, start), operands)


def gradients(
    head: Head, operands: Operands, stats: RowStats, by: RowStats, *, wanted: Wanted
) -> Gradients:
    """Computes the gradients from the statistics; the logits are formed again.

    Args:
        head: The head and its tiles.
        operands: Arrays of the loss.
        stats: Statistics of each token.
        by: Derivatives of the loss by `stats`.
        wanted: Requested gradients.
    """
    cut = _cut_operands(head, operands)
    per_token = _cut(head, (stats, by))

    def step(i: Array, sums: Gradients) -> Gradients:
        own, by_own = _take(per_token, i)
        return _back(head, _tile(cut, i), i, own, by_own, None, sums)

    start = varying(_no_gradients(head, cut, wanted), cut.x, cut.w)
    sums = _over_tokens(head, operands, step, start)
    return _finish(head, operands, sums)


def stats_and_gradients(
    head: Head,
    operands: Operands,
    formula: Callable[[RowStats, Array], Array],
    weights: Array,
    *,
    wanted: Wanted,
) -> tuple[RowStats, Array, Gradients]:
    """Computes statistics and the gradients of the sum of `formula` in one loop over tokens.

    The cotangent of the sum is a scalar and can scale the gradients afterwards. They are therefore
    formed while the logits are in memory.

    Args:
        head: The head and its tiles.
        operands: Arrays of the loss.
        formula: Loss of each token, from a tile's stats and weights.
        weights: Weight of each token.
        wanted: Requested gradients.

    Returns:
        RowStats, the index of each token's largest logit, and the gradients.
    """
    cut = _cut_operands(head, operands)
    factors = _cut(head, weights)
    shape = (head.tiles.rows, operands.w.shape[head.vocab_axis])
    kept = jnp.zeros(shape, accumulator(operands.x.dtype)) if head.tiles.keep else None
    best = jnp.zeros(cut.labels.shape, jnp.int32)

    def step(i: Array, carry: tuple) -> tuple:
        per_token, sums, kept = carry
        tile = _tile(cut, i)
        stats, best, z = _forward(head, tile, kept)
        factor = _take(factors, i)
        values, pull = jax.vjp(lambda stats: formula(stats, factor), stats)
        (by,) = pull(jnp.ones_like(values))
        sums = _back(head, tile, i, stats, by, z, sums)
        return _put(per_token, (stats, best), i), sums, None if kept is None else z

    start = vary_over(_token_axes(head, operands), (_no_stats(head, cut), best))
    own = varying((_no_gradients(head, cut, wanted), kept), cut.x, cut.w)
    (stats, best), sums, _ = _over_tokens(head, operands, step, (start, *own))
    return *_join((stats, best), operands), _finish(head, operands, sums)


def _over_tokens(head: Head, operands: Operands, step: Callable[..., Any], start: Any) -> Any:
    """Runs `step(i, carry)` over the tiles of tokens."""
    tokens, rows = operands.x.shape[0], head.tiles.rows
    with trips(tokens, rows):  # without padding
        return lax.fori_loop(0, _count(tokens, rows), step, start)


def _over_columns(head: Head, tile: Operands, step: Callable[..., Any], start: Any) -> Any:
    """Runs `step(j, carry)` over the tiles of columns, without a loop if there is one."""
    if head.tiles.whole:
        return step(jnp.zeros((), jnp.int32), start)
    vocabulary, columns = tile.w.shape[head.vocab_axis], head.tiles.columns
    with trips(vocabulary, columns):  # without the overlap of the last two
        return lax.fori_loop(0, -(-vocabulary // columns), step, start)


def _count(tokens: Any, rows: Any) -> Any:
    """Returns the number of tiles of tokens, at least 1."""
    count = -(-tokens // max(rows, 1))
    return count if is_symbolic(count) else max(count, 1)


def _cut(head: Head, arrays: Any) -> Any:
    """Reshapes arrays per token to [rows, tiles, ...], with zeros after the last token."""

    def cut_array(array: Array) -> Array:
        count = _count(array.shape[0], head.tiles.rows)
        missing = count * head.tiles.rows - array.shape[0]
        if is_symbolic(missing) or missing:
            array = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        return array.reshape(head.tiles.rows, count, *array.shape[1:])

    return jax.tree.map(cut_array, arrays)


def _cut_operands(head: Head, operands: Operands) -> Operands:
    labels = operands.labels - first_column(head.names, operands.w.shape[head.vocab_axis])
    x, labels, read = _cut(head, (operands.x, labels, operands.read))
    return operands._replace(x=x, labels=labels, read=read)


def _token_axes(head: Head, operands: Operands) -> frozenset[str]:
    """Returns the axes over which statistics vary: they are combined over the shards of w."""
    return (varies(operands.x) | varies(operands.w)) - set(head.names)


def _join(arrays: Any, operands: Operands) -> Any:
    """Reshapes [rows, tiles] to [tokens]."""
    return jax.tree.map(lambda a: a.reshape(-1)[: operands.x.shape[0]], arrays)


def _take(arrays: Any, i: Array) -> Any:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, axis=1, keepdims=False), arrays)


def _put(arrays: Any, values: Any, i: Array) -> Any:
    return jax.tree.map(
        lambda a, v: lax.dynamic_update_index_in_dim(a, v, i, axis=1), arrays, values
    )


def _tile(cut: Operands, i: Array) -> Operands:
    """Returns tile i of the tokens, zero for tokens not read: 0 times NaN would be NaN."""
    x, labels, read = _take((cut.x, cut.labels, cut.read), i)
    x = jnp.where(read[:, None], x, jnp.zeros((), x.dtype))
    return cut._replace(x=x, labels=jnp.where(read, labels, 0), read=read)


def _no_stats(head: Head, cut: Operands) -> RowStats:
    zeros = jnp.zeros(cut.labels.shape, accumulator(cut.x.dtype))
    return RowStats(
        lse=zeros,
        label=zeros,
        total=zeros if head.total else None,
        mean=zeros if head.mean else None,
    )


def _no_gradients(head: Head, cut: Operands, wanted: Wanted) -> Gradients:
    """Returns sums of zeros. That of x has x's dtype unless shards of w add to it: each tile is
    written once.
    """
    acc = accumulator(cut.x.dtype)
    bias = cut.bias if wanted.bias else None
    return Gradients(
        x=jnp.zeros(cut.x.shape, acc if head.names else cut.x.dtype) if wanted.x else None,
        w=jnp.zeros(cut.w.shape, acc) if wanted.w else None,
        bias=None if bias is None else jnp.zeros(bias.shape, acc),
    )


def _finish(head: Head, operands: Operands, sums: Gradients) -> Gradients:
    """Returns the sums in the shapes and dtypes of the operands."""
    x, w, bias = sums
    if x is not None:
        x = sum_over(head.names, x, operands.x)
        x = x.reshape(-1, x.shape[-1])[: operands.x.shape[0]].astype(operands.x.dtype)
    if w is not None:
        w = w.astype(operands.w.dtype)
    if bias is not None and operands.bias is not None:
        bias = bias.astype(operands.bias.dtype)
    return Gradients(x, w, bias)


def _start(head: Head, j: Array, vocabulary: Any) -> Array:
    """Returns the first column of tile j. The last tile ends with the vocabulary."""
    return jnp.minimum(j.astype(jnp.int32) * head.tiles.columns, vocabulary - head.tiles.columns)


def _columns(head: Head, j: Array, vocabulary: Any) -> tuple[Array, Array | None]:
    """Returns a tile's column indices [1, columns] and the mask of new ones; None if all are."""
    columns = jnp.arange(head.tiles.columns, dtype=jnp.int32)[None]
    columns = columns + _start(head, j, vocabulary)
    if vocabulary % head.tiles.columns == 0:
        return columns, None
    return columns, columns >= j.astype(jnp.int32) * head.tiles.columns


def _slice(head: Head, array: Array, j: Array, axis: int) -> Array:
    """Returns the columns of tile j, of an array with those of the whole vocabulary."""
    if head.tiles.whole:
        return array
    start = _start(head, j, array.shape[axis])
    return lax.dynamic_slice_in_dim(array, start, head.tiles.columns, axis)


def _logits(head: Head, tile: Operands, j: Array) -> Array:
    """Returns z [rows, columns] of tile j of the columns."""
    acc = accumulator(tile.x.dtype)
    formula = "md,dv->mv" if head.vocab_axis == 1 else "md,vd->mv"
    w = _slice(head, tile.w, j, head.vocab_axis)
    z = product(formula, tile.x, w, dtype=tile.x.dtype)
    if tile.bias is not None:
        z = z + _slice(head, tile.bias, j, 0).astype(acc)[None]
    if head.soft_cap is not None:
        z = head.soft_cap * jnp.tanh(z / head.soft_cap)
    if head.temperature != 1.0:
        z = z / head.temperature
    # Formed once: the largest logit is found by its bits, and two fusions might round unlike.
    return lax.optimization_barrier(z)


def _forward(
    head: Head, tile: Operands, kept: Array | None
) -> tuple[RowStats, Array, Array | None]:
    """Returns a tile's RowStats, the index of each largest logit, and z if it is kept."""
    vocabulary = tile.w.shape[head.vocab_axis]
    zeros = jnp.zeros(tile.labels.shape, accumulator(tile.x.dtype))

    def step(j: Array, carry: tuple[ColumnSums, Array | None]) -> tuple[ColumnSums, Array | None]:
        sums, kept = carry
        z = _logits(head, tile, j)
        if head.tiles.whole:
            kept = z
        elif kept is not None:
            kept = lax.dynamic_update_slice_in_dim(kept, z, _start(head, j, vocabulary), axis=1)
        # Again, for 0 tokens: JAX replaces some arrays without elements by constants.
        return varying(_add_columns(head, tile, sums, z, j), tile.x, tile.w), kept

    first = jnp.zeros_like(tile.labels)
    nothing = ColumnSums(zeros - jnp.inf, zeros, zeros, zeros, zeros, first)
    nothing = varying(nothing, tile.x, tile.w)
    sums, kept = _over_columns(head, tile, step, (nothing, kept))
    sums = combine(head.names, sums, columns=vocabulary)
    stats = RowStats(
        lse=jnp.where(sums.top == -jnp.inf, sums.top, sums.top + jnp.log(sums.exps)),
        label=sums.label,
        total=sums.total if head.total else None,
        mean=sums.moment / sums.exps if head.mean else None,
    )
    return stats, sums.best, kept


def _add_columns(head: Head, tile: Operands, sums: ColumnSums, z: Array, j: Array) -> ColumnSums:
    """Adds the logits z of tile j of the columns to `sums`."""
    vocabulary = tile.w.shape[head.vocab_axis]
    columns, new = _columns(head, j, vocabulary)
    hit = columns == tile.labels[:, None]
    seen, added = z, z
    if new is not None:
        seen, added, hit = jnp.where(new, z, -jnp.inf), jnp.where(new, z, 0), hit & new
    top = jnp.max(seen, axis=1)
    first = jnp.min(jnp.where(seen == top[:, None], columns, vocabulary - 1), axis=1)
    raised = jnp.maximum(sums.top, top)
    level = jnp.where(raised == -jnp.inf, 0, raised)  # -inf - -inf would be NaN
    shrink = jnp.exp(sums.top - level)
    e = jnp.exp(seen - level[:, None])
    label = _gather(z, tile.labels) if head.tiles.whole else jnp.sum(jnp.where(hit, z, 0), axis=1)
    total, moment = sums.total, sums.moment
    if head.total:
        total = total + jnp.sum(added, axis=1)
    if head.mean:
        moment = moment * shrink + jnp.sum(jnp.where(e > 0, e * z, 0), axis=1)
    return ColumnSums(
        top=raised,
        exps=sums.exps * shrink + jnp.sum(e, axis=1),
        moment=moment,
        label=sums.label + label,
        total=total,
        best=jnp.where(top > sums.top, first, sums.best),
    )


def _gather(z: Array, labels: Array) -> Array:
    """Returns z at each label, 0 for one of another shard, without a pass over all logits."""
    at = jnp.clip(labels, 0, z.shape[1] - 1)
    return jnp.where(labels == at, jnp.take_along_axis(z, at[:, None], axis=1)[:, 0], 0)


def _back(
    head: Head,
    tile: Operands,
    i: Array,
    stats: RowStats,
    by: RowStats,
    kept: Array | None,
    sums: Gradients,
) -> Gradients:
    """Adds tile i of the tokens to `sums`. `by` is the derivative of the loss by `stats`."""
    acc = accumulator(tile.x.dtype)

    def step(j: Array, own: Gradients) -> Gradients:
        if kept is None:
            with recomputed():
                z = _logits(head, tile, j)
        else:
            z = _slice(head, kept, j, 1)
        return _add_products(head, tile, own, _logit_gradient(head, tile, stats, by, z, j), j)

    zeros = varying(jnp.zeros(tile.x.shape, acc), tile.x, tile.w)
    own = sums._replace(x=None if sums.x is None else zeros)
    updated = _over_columns(head, tile, step, own)
    if sums.x is None or updated.x is None:
        return updated
    return updated._replace(x=_put(sums.x, updated.x.astype(sums.x.dtype), i))


def _logit_gradient(
    head: Head, tile: Operands, stats: RowStats, by: RowStats, z: Array, j: Array
) -> Array:
    """Returns the derivative by x w + bias in tile j: the module's formula, then the soft cap."""
    columns, new = _columns(head, j, tile.w.shape[head.vocab_axis])
    p = jnp.exp(z - stats.lse[:, None])
    g = by.lse[:, None] * p
    g = g + jnp.where(columns == tile.labels[:, None], by.label[:, None], 0)
    if by.total is not None:
        g = g + by.total[:, None]
    if by.mean is not None and stats.mean is not None:
        spread = jnp.where(p > 0, p * (1 + z - stats.mean[:, None]), 0)
        g = g + by.mean[:, None] * spread
    if head.soft_cap is not None:
        g = g * (1 - jnp.square(z * (head.temperature / head.soft_cap)))
    if head.temperature != 1.0:
        g = g / head.temperature
    counts = tile.read[:, None] if new is None else tile.read[:, None] & new
    return jnp.where(counts, g, 0)


def _add_products(head: Head, tile: Operands, sums: Gradients, g: Array, j: Array) -> Gradients:
    """Adds tile j of the columns to `sums`, from its gradient g of x w + bias."""
    axis = head.vocab_axis
    x, w, bias = sums
    if bias is not None:
        bias = _add_slice(head, bias, jnp.sum(g, axis=0), j, 0)
    g = g.astype(tile.x.dtype)
    if x is not None:
        formula = "mv,dv->md" if axis == 1 else "mv,vd->md"
        x = x + product(formula, g, _slice(head, tile.w, j, axis), dtype=tile.x.dtype)
    if w is not None:
        formula, pair = ("md,mv->dv", (tile.x, g)) if axis == 1 else ("mv,md->vd", (g, tile.x))
        w = _add_slice(head, w, product(formula, *pair, dtype=tile.x.dtype), j, axis)
    return Gradients(x, w, bias)


def _add_slice(head: Head, array: Array, value: Array, j: Array, axis: int) -> Array:
    new = _slice(head, array, j, axis) + value
    if head.tiles.whole:
        return new
    return lax.dynamic_update_slice_in_dim(array, new, _start(head, j, array.shape[axis]), axis)
