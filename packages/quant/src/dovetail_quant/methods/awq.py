# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""AWQ (Lin et al., 2306.00978): finer weights for inputs that are large on average.

x w = (x / s) (s w): a weight row scaled up by s is rounded s times finer, as long as its larger
neighbours still set the scales of its groups; the input is divided in return. Equation 5 of the
paper searches s = m^alpha, m = mean |x| of each input, with alpha in [0, 1], for the least output
error. The paper measures this error on stored activations; here it is tr(dW^T H dW), the same
number without them.

Clipping, one sentence in the paper, then narrows the range of a group if finer rounding of the rest
outweighs the loss of its extremes.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.reconstruct import Report, channel_errors, check_operands, report
from dovetail_quant.methods.record import Statistics

# Inputs below this part of the largest count as this: beyond, s w of the others would be rounded
# as if they were all that matters, and an input that was silent in calibration would lose all bits.
_LEAST_MEAN = 1e-4


def awq(
    w: Float[Array, "K N"],
    stats: Statistics,
    spec: Spec,
    *,
    grid: int = 20,
    clips: Sequence[float] = (),
) -> tuple[Float[Array, "K"], QArray, Report]:
    """Returns s[K], the codes of s w, and the error: y = (x / s) Q(s w).

    s has geometric mean 1 between its largest and its least; it is 1 for a site without rows.

    Args:
        w: Weights.
        stats: Statistics of the inputs, from `record`.
        spec: The codes.
        grid: Number of alphas, evenly from 0 (round to nearest) to 1. The result is never worse
            than nearest.
        clips: Fractions of a group's range to try besides all of it, such as (0.95, 0.9, 0.8, 0.7).
            Each output and group takes the best, unless the output as a whole suffers.

    Raises:
        ValueError: Shapes do not fit, a group does not divide K, or an option is out of range.

    Example:

        >>> from dovetail_quant import Spec
        >>> from dovetail_quant.methods import record
        >>> x = jax.random.normal(jax.random.key(0), (512, 128))
        >>> w = jax.random.normal(jax.random.key(1), (128, 64))
        >>> stats = record.update(record.empty(128), x)
        >>> s, q, report = awq(w, stats, Spec(weight="int4", group=32))
        >>> bool(report.error <= report.nearest)
        True
    """
    check_operands(w, stats.gram)
    if grid < 2:
        raise ValueError(f"grid must be at least 2 exponents, got grid={grid}; write grid=20")
    if not all(0 < c < 1 for c in clips):
        raise ValueError(
            f"clips must be parts of a range, between 0 and 1, got clips={tuple(clips)}; "
            "write clips=(0.95, 0.9, 0.8)"
        )
    return _awq(w, stats, spec, grid=grid, clips=tuple(float(c) for c in clips))


@jax.jit(static_argnames=("spec", "grid", "clips"))
def _awq(
    w: Array, stats: Statistics, spec: Spec, *, grid: int, clips: tuple[float, ...]
) -> tuple[Array, QArray, Report]:
    w, gram = w.astype(jnp.float32), stats.gram.astype(jnp.float32)
    largest = stats.absmean.max()
    mean = jnp.maximum(stats.absmean / jnp.where(largest > 0, largest, 1), _LEAST_MEAN)

    def smoothing(alpha: Array) -> Array:
        s = mean**alpha
        return s / jnp.sqrt(s.max() * s.min())

    def errors_of(q: QArray, s: Array) -> Array:
        return channel_errors(codes.dequantize(q) / s[:, None] - w, gram)

    def attempt(alpha: Array) -> Array:
        s = smoothing(alpha)
        return errors_of(codes.quantize(w * s[:, None], spec), s).sum()

    alphas = jnp.linspace(0, 1, grid, dtype=jnp.float32)
    alpha = alphas[jnp.argmin(jax.lax.map(attempt, alphas))]
    s, plain = smoothing(alpha), codes.quantize(w, spec)
    q = codes.quantize(w * s[:, None], spec)
    errors, nearest = errors_of(q, s), errors_of(plain, jnp.ones_like(s))
    pays = errors.sum() < nearest.sum()
    s, alpha = jnp.where(pays, s, 1), jnp.where(pays, alpha, 0)
    q = jax.tree.map(lambda a, b: jnp.where(pays, a, b), q, plain)
    errors, kept = jnp.where(pays, errors, nearest), jnp.full(errors.shape, ~pays)
    if clips:
        narrow = _clipped(w * s[:, None], q, gram / (s[:, None] * s[None]), spec, clips=clips)
        narrowed = errors_of(narrow, s)
        better = narrowed < errors
        q = jax.tree.map(lambda a, b: jnp.where(better[None], a, b), narrow, q)
        errors, kept = jnp.where(better, narrowed, errors), kept & ~better
    return s, q, report(w, gram, errors=errors, nearest=nearest, kept=kept.sum(), alpha=alpha)


def _clipped(w: Array, q: QArray, gram: Array, spec: Spec, *, clips: tuple[float, ...]) -> QArray:
    """Returns q with the scale of each group narrowed by its best ratio.

    A group is judged by its own block of the gram, as if the other groups were exact.
    """
    groups = q.scale.shape[0]
    size = len(w) // groups
    blocks = gram.reshape(groups, size, groups, size)[jnp.arange(groups), :, jnp.arange(groups)]

    def cost(ratio: Array) -> Array:
        scale = q.scale * ratio
        rounded = codes.encode(w, scale, q.zero_point, spec)
        dw = (codes.decode(rounded, scale, q.zero_point, spec) - w).reshape(groups, size, -1)
        return jax.vmap(channel_errors)(dw, blocks)

    ratios = jnp.asarray((1.0, *clips), jnp.float32)
    scale = q.scale * ratios[jnp.argmin(jax.lax.map(cost, ratios), axis=0)]
    return dataclasses.replace(q, qvalue=codes.encode(w, scale, q.zero_point, spec), scale=scale)
