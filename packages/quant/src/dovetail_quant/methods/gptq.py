# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""GPTQ (Frantar et al., 2210.17323): weights rounded one input at a time, with compensation.

Rounding costs tr(dW^T H dW) at the outputs, H = sum of x x^T. After an input is rounded, the
weights of the remaining inputs can move to undo some of its error; moved weights are rounded next.
Algorithm 1 of the paper moves all remaining weights, by rows of the upper Cholesky factor U of the
inverse of H: after input i, w_j -= (w_i - q_i) U_ij / U_ii.

Here the same numbers come from the Cholesky factor of H itself, in reverse. Number the inputs
backwards, in descending order of rounding, and let H = L L^T. Then L^T is upper, U is the inverse
of L, and the moved weight of input i is

    v_i = w_i + sum over j already rounded of (L_ji / L_ii) (w_j - q_j)

with the original weights on the right. Nothing is inverted, the errors w - q are the only state,
and a block of inputs costs one product with the earlier errors, then a product of a row each. This
form also loses fewer digits, by the root of the condition of H.

The scale of a group is set from its moved weights when its first input is rounded (the paper's
grouping; the inputs then go in their own order), or beforehand from the original weights, so that
inputs may be rounded in any order and groups stay contiguous in memory (GPTQ's "static groups").
Active inputs first is more accurate with one scale per output; with groups either may win.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.reconstruct import Report, channel_errors, check_operands, report

_HIGHEST = jax.lax.Precision.HIGHEST
# Damping grows tenfold until H factors, from 1e-6 of the mean diagonal if it was 0. A sum of
# squares factors at K 2^-24 (0.001 for K = 16384); a gram that needs over 1e3 is none.
_LEAST_DAMP = 1e-6
_MOST_DAMP = 1e3


class _Problem(NamedTuple):
    """Inputs of the loops.

    w, scale and zero are in the order of the inputs, factor in reverse order of rounding; place[i]
    is the input at i there.
    """

    w: Array
    factor: Array
    place: Array
    scale: Array
    zero: Array | None


class _State(NamedTuple):
    """errors: w - q, in the order of the factor, 0 before rounding. The zero points are float32.

    Codes are not kept: XLA writes one row of 4-bit integers by unpacking them all. Each code is the
    one nearest to w - errors.
    """

    errors: Array
    scale: Array
    zero: Array | None


def gptq(
    w: Float[Array, "K N"],
    gram: Float[Array, "K K"],
    spec: Spec,
    *,
    damp: float = 0.01,
    order: Literal["activation", "natural"] = "activation",
    block: int = 128,
) -> tuple[QArray, Report]:
    """Computes codes of w that reduce tr(dW^T H dW), H = gram.

    The codes have the form of `codes.quantize`. No output channel is worse than round to nearest:
    it is returned if moving weights did not pay (`Report.kept`). Inputs that were always 0 get
    weight 0.

    Peak memory beside w and gram, in float32: 2.25 [K, K] (the factor and its matrix) and 4 [K, N].
    The program has the same size for every K.

    Args:
        w: Weights, of any float dtype; computed in float32.
        gram: Sum of x x^T over calibration rows in any unit, as in `record`; computed in float32.
        spec: The codes.
        damp: Added to the diagonal of H, in units of its mean; raised tenfold until H factors, and
            reported. If it never factors (it is not a sum of squares), every channel stays nearest.
        order: "activation" rounds the largest diagonal first, with scales of the original weights.
            "natural" goes from the first input to the last and sets the scales of `spec.group` on
            the way.
        block: Inputs between two products with all errors. Changes the speed, and the result only
            by rounding. Not read in natural order with groups; the groups are the blocks.

    Returns:
        The codes, and a report of the error.

    Raises:
        ValueError: Shapes do not fit, a group does not divide K, or an option is out of range.

    Example:

        >>> from dovetail_quant import Spec
        >>> x = jax.random.normal(jax.random.key(0), (512, 128))
        >>> w = jax.random.normal(jax.random.key(1), (128, 64))
        >>> q, report = gptq(w, x.T @ x, Spec(weight="int4", group=32))
        >>> bool(report.error <= report.nearest)
        True
    """
    check_operands(w, gram)
    _check_options(damp, order, block)
    return _gptq(w, gram, spec, damp=jnp.float32(damp), order=order, block=block)


@jax.jit(static_argnames=("spec", "order", "block"))
def _gptq(
    w: Array, gram: Array, spec: Spec, *, damp: Array, order: str, block: int
) -> tuple[QArray, Report]:
    w, gram = w.astype(jnp.float32), gram.astype(jnp.float32)
    nearest = codes.quantize(w, spec)
    diagonal = jnp.diagonal(gram)
    # In reverse: what is rounded first stands last.
    place = jnp.argsort(diagonal) if order == "activation" else jnp.arange(len(w))[::-1]
    factor, used = _factor(gram, place, damp)
    live = jnp.where((diagonal == 0)[:, None], 0, w)
    problem = _Problem(live, factor, place, *codes.scales(live, spec))
    # A group in the natural order is a block, so that its scale is due when the block is.
    moving = spec.group if order == "natural" else None
    size = moving or min(block, len(w))
    state = _rounded(problem, spec, block=size, moving=moving is not None)
    q = _codes(problem, state, spec, like=nearest)

    errors = channel_errors(codes.dequantize(q) - w, gram)
    rounded = channel_errors(codes.dequantize(nearest) - w, gram)
    # Not <=: a gram of zeros says nothing. NaN, from a factor that failed, is not less either.
    better = errors < rounded
    return jax.tree.map(lambda a, b: jnp.where(better[None], a, b), q, nearest), report(
        w,
        gram,
        errors=jnp.where(better, errors, rounded),
        nearest=rounded,
        kept=jnp.sum(~better),
        damp=used,
    )


def _factor(gram: Array, place: Array, damp: Array) -> tuple[Array, Array]:
    """Returns lower Cholesky factor of the damped gram, ordered by `place`, and the damping."""
    diagonal = jnp.diagonal(gram)
    mean = jnp.mean(diagonal)
    # An input that was always 0 is tied to no other: any positive element keeps it so.
    diagonal = jnp.where(diagonal == 0, jnp.where(mean > 0, mean, 1), diagonal)

    def failed(tried: tuple[Array, Array, Array]) -> Array:
        return ~jnp.isfinite(tried[0][-1, -1]) & (tried[2] <= _MOST_DAMP)

    def attempt(tried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        # The barrier ties the reordered gram to this attempt: moved out of the loop it would live
        # as long as the factor, a third [K, K].
        at, damp = jax.lax.optimization_barrier((place, tried[2]))
        raised = (diagonal + damp * mean)[at]
        damped = jnp.where(at[:, None] == at[None], raised[None], gram[at[:, None], at[None]])
        factor = jax.lax.linalg.cholesky(damped, symmetrize_input=False)  # all NaN if it fails
        return factor, damp, jnp.maximum(10 * damp, _LEAST_DAMP)

    start = jnp.full_like(gram, jnp.nan), jnp.zeros_like(damp), damp
    factor, used, _ = jax.lax.while_loop(failed, attempt, start)
    return factor, used


def _rounded(problem: _Problem, spec: Spec, *, block: int, moving: bool) -> _State:
    """Rounds all inputs, from the last block of the factor to the first."""
    inputs = len(problem.w)
    full, rest = divmod(inputs, block)
    state = _State(
        errors=jnp.zeros_like(problem.w),
        scale=problem.scale,
        zero=None if problem.zero is None else problem.zero.astype(jnp.float32),
    )

    def one(i: Array, state: _State) -> _State:
        start = inputs - (i + 1) * block
        return _block(problem, state, spec, start=start, size=block, moving=moving)

    state = jax.lax.fori_loop(0, full, one, state)
    return _block(problem, state, spec, start=0, size=rest, moving=False) if rest else state


def _block(
    problem: _Problem, state: _State, spec: Spec, *, start: Array | int, size: int, moving: bool
) -> _State:
    """Rounds the inputs at [start, start + size) of the factor; all behind them are done."""
    columns = jax.lax.dynamic_slice_in_dim(problem.factor, start, size, axis=1)
    within = jax.lax.dynamic_slice_in_dim(columns, start, size)
    feedback = columns / jnp.diagonal(within)[None]
    # Of inputs behind the block; the errors of the others, and of the block, are still 0.
    moved = jnp.matmul(feedback.T, state.errors, precision=_HIGHEST)
    within = jax.lax.dynamic_slice_in_dim(feedback, start, size)
    place = jax.lax.dynamic_slice_in_dim(problem.place, start, size)
    if moving:
        state = _scaled(problem, state, spec, moved=moved, within=within, place=place)
    inputs_of_scale = len(problem.w) // len(state.scale)

    def one(i: Array, errors: Array) -> Array:
        row = size - 1 - i
        w = problem.w[place[row]][None]
        back = jnp.matmul(within[:, row][None], errors, precision=_HIGHEST)
        group = place[row] // inputs_of_scale
        scale = state.scale[group][None]
        zero = None if state.zero is None else state.zero[group][None]
        q = codes.encode(w + moved[row][None] + back, scale, zero, spec)
        error = w - codes.decode(q, scale, zero, spec)
        return jax.lax.dynamic_update_slice_in_dim(errors, error, row, 0)

    errors = jax.lax.fori_loop(0, size, one, jnp.zeros_like(moved))
    errors = jax.lax.dynamic_update_slice_in_dim(state.errors, errors, start, 0)
    return state._replace(errors=errors)


def _scaled(
    problem: _Problem, state: _State, spec: Spec, *, moved: Array, within: Array, place: Array
) -> _State:
    """Sets the scale of the group in this block, from its weights as moved so far.

    If no input of the group were rounded, each would move by c with c = moved - (within - 1)^T c:
    an input's share of an error is not taken again by those after it.
    """
    c = jax.lax.linalg.triangular_solve(
        within, moved, left_side=True, lower=True, transpose_a=True, unit_diagonal=True
    )
    group = place[0] // len(place)
    scale, zero = codes.scales(problem.w[place] + c, spec)
    update = jax.lax.dynamic_update_slice_in_dim
    scale = update(state.scale, scale, group, 0)
    if state.zero is None or zero is None:
        return state._replace(scale=scale)
    zero = update(state.zero, zero.astype(jnp.float32), group, 0)
    return state._replace(scale=scale, zero=zero)


def _codes(problem: _Problem, state: _State, spec: Spec, *, like: QArray) -> QArray:
    """Returns the codes nearest to w - errors, in the order of w and with the dtypes of `like`.

    The difference is off by 2^-24 of the weight, and codes are 2^-8 of the range apart.
    """
    q = problem.w - state.errors[jnp.argsort(problem.place)]
    zero = None if state.zero is None else state.zero.astype(codes.ZERO)
    qvalue = codes.encode(q, state.scale, zero, spec)
    return dataclasses.replace(like, qvalue=qvalue, scale=state.scale, zero_point=zero)


def _check_options(damp: float, order: str, block: int) -> None:
    if not 0 <= damp <= _MOST_DAMP:
        raise ValueError(
            f"damp must be in [0, {_MOST_DAMP:g}], in units of the mean diagonal, got damp={damp}; "
            "write damp=0.01"
        )
    if order not in ("activation", "natural"):
        raise ValueError(
            f"order must be 'activation' or 'natural', got order={order!r}; "
            "write order='activation'"
        )
    if block < 1:
        raise ValueError(f"block must be at least 1 input, got block={block}; write block=128")
