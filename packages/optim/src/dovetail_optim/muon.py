# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum, orthogonalized by Newton-Schulz (kellerjordan.github.io/posts/muon).

    M ← μ M + (1 - μ) G
    N = μ M + (1 - μ) G          with Nesterov's momentum, else M
    W ← W - η s O - η λ W        O ≈ the polar factor UVᵀ of N = UΣVᵀ, s by the matrix's shape

UVᵀ is the step of steepest descent under the spectral norm: all singular directions of the momentum
move alike, where a gradient's own step is nearly all in a few of them. It is of matrices, so which
axes of a parameter make its matrices is part of the optimizer; and whole matrices are needed, so is
the exchange that makes a sharded matrix whole on one device.

It is for the hidden matrices of a network. Embeddings, the last layer, scales and biases go to
another transformation, by `route`.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int32

from dovetail_optim.decay import (
    Mode,
    Rate,
    at,
    check_mode,
    check_rate,
    decay_update,
    strength,
    wide,
)
from dovetail_optim.exchange import Where, check_where, map_whole
from dovetail_optim.matrix import Matrices, Rule, assign, parse_rules
from dovetail_optim.newton_schulz import coefficients, orthogonalize

Scale = Literal["spectral", "rms", "width"]


class MuonState(NamedTuple):
    """The steps taken, and M in the parameters' structure, of float32 at least."""

    step: Int32[Array, ""]
    momentum: Any


def muon(
    learning_rate: Rate,
    *,
    matrix: str | Sequence[Rule] = "i o -> , i, o",
    momentum: float = 0.95,
    nesterov: bool = True,
    ns: str | Sequence[Sequence[float]] = "jordan",
    scale: Scale = "spectral",
    weight_decay: Rate = 0.0,
    decay: Mode = "coupled",
    exchange: Where = "auto",
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
    chunk_bytes: int = 2**28,
) -> optax.GradientTransformation:
    """-η s O - η λ W for each matrix W, with O the orthogonalized momentum.

    learning_rate: η, a number or a schedule of the step, counted from 0.
    matrix: which axes are the matrices, as in `dovetail_optim.matrix`, or pairs of a pattern and
    such a string where parameters differ: the first that a parameter's name matches.
    momentum: μ. ns, dtype: as of `orthogonalize`.
    scale: s. "spectral" is √max(1, out/in) (Jordan); "rms" is 0.2 √max(in, out), which gives an
    update the root mean square that Adam's has (arXiv 2502.16982, equation 4), so that Adam's
    learning rate and decay serve; "width" is √(out/in), for which the best η does not depend on the
    width (arXiv 2310.17813, condition 1).
    weight_decay, decay: λ and the mode, as in `dovetail_optim.decay`.
    exchange, chunk_bytes: as `where` and `chunk_bytes` of `dovetail_optim.exchange`. On an Auto
    mesh under `jax.jit` give the parameters' shardings, or have the mesh in context.

    Updates are in the parameter's dtype. Params are needed for weight decay alone. Raises
    ValueError for arguments that are not as above; at `init` and while `update` is traced, for a
    parameter whose rank is not that of its axis string.

        tx = route([("layers/**/kernel", muon(0.02)), ("**", optax.adamw(1e-3))])
        tx = muon(0.02, matrix=[("*/q/kernel", "i h d -> h, i, d"), ("**", "i o -> , i, o")])
    """
    rules, rows = parse_rules(matrix), coefficients(ns)
    check_rate("learning_rate", learning_rate)
    check_rate("weight_decay", weight_decay)
    check_mode(decay)
    check_where(exchange)
    _check(momentum, scale, chunk_bytes)
    decays = not (isinstance(weight_decay, float | int) and weight_decay == 0)

    def init(params: Any) -> MuonState:
        assign(rules, params)
        return MuonState(step=jnp.zeros([], jnp.int32), momentum=jax.tree.map(_zeros, params))

    def change(o: Array, w: Array, folding: Matrices, step: Array) -> Array:
        """What is added to W, before rounding to its dtype."""
        eta = jnp.asarray(at(learning_rate, step), wide(w.dtype))
        moved = -eta * _factor(scale, *folding.sizes(w.shape)[1:]) * o.astype(eta.dtype)
        if not decays:
            return moved
        amount = strength(decay, weight_decay, learning_rate, step)
        return decay_update(moved, w, amount=amount, mode=decay)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MuonState]:
        if params is None and decays:
            raise ValueError(
                f"muon needs the parameters for weight decay; got params=None, {weight_decay=}; "
                "call update(updates, state, params)"
            )
        matrices = assign(rules, updates)
        average = jax.tree.map(lambda m, g: _average(momentum, m, g), state.momentum, updates)
        ahead = average
        if nesterov:
            ahead = jax.tree.map(lambda m, g: _average(momentum, m, g), average, updates)
        orthogonal = map_whole(
            lambda stack: orthogonalize(stack, ns=rows, dtype=dtype),
            jax.tree.leaves(ahead),
            matrices,
            where=exchange,
            dtype=dtype,
            chunk_bytes=chunk_bytes,
        )
        leaves, structure = jax.tree.flatten(updates)
        weights = leaves if params is None else jax.tree.leaves(params)
        moved = [
            change(o, w, folding, state.step).astype(w.dtype)
            for o, w, folding in zip(orthogonal, weights, matrices, strict=True)
        ]
        after = MuonState(step=jnp.asarray(optax.safe_increment(state.step)), momentum=average)
        return jax.tree.unflatten(structure, moved), after

    return optax.GradientTransformation(init, update)


def _zeros(p: Array) -> Array:
    return jnp.zeros_like(p, dtype=wide(p.dtype))


def _average(momentum: float, m: Array, g: Array) -> Array:
    """μ M + (1 - μ) G."""
    return momentum * m + (1 - momentum) * g.astype(m.dtype)


def _factor(scale: Scale, rows: int, columns: int) -> float:
    """s of a matrix with `rows` in and `columns` out."""
    if scale == "rms":
        return 0.2 * math.sqrt(max(rows, columns))
    ratio = columns / rows
    return math.sqrt(ratio if scale == "width" else max(1.0, ratio))


def _check(momentum: float, scale: str, chunk_bytes: int) -> None:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1); got {momentum=}; write momentum=0.95")
    if scale not in get_args(Scale):
        raise ValueError(
            f"scale must be one of {list(get_args(Scale))}; got {scale=}; write 'spectral' for "
            "that of Jordan and of torch.optim.Muon"
        )
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1; got {chunk_bytes=}; write 2**28")
