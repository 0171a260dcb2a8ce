# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum, orthogonalized by Newton-Schulz (kellerjordan.github.io/posts/muon).

    M ← μ M + (1 - μ) G
    N = μ M + (1 - μ) G          with Nesterov's momentum, else M
    W ← W - η s O - η λ W        O ≈ the polar factor UVᵀ of N = UΣVᵀ, s by the matrix's shape

UVᵀ is the step of steepest descent under the spectral norm: all singular directions of the momentum
move alike, while a gradient's own step is nearly all in a few of them. The optimizer needs to know
which axes of a parameter form its matrices, and it needs whole matrices: `exchange` brings a
sharded matrix to one device.

Use it for the hidden matrices of a network. Embeddings, the last layer, scales and biases go to
another transformation, by `route`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Int32

from dovetail_optim import _elsewhere
from dovetail_optim.matrix.decay import Decaying, Mode, Rate, at, check_decaying, decay_update, wide
from dovetail_optim.matrix.exchange import Where, check_where, map_whole
from dovetail_optim.matrix.matrix import (
    Matrices,
    Rule,
    assign,
    check_count,
    check_known,
    check_share,
    parse_rules,
)
from dovetail_optim.matrix.newton_schulz import Row, coefficients, orthogonalize
from dovetail_optim.route import pick

Scale = Literal["spectral", "rms", "width"]


class MuonState(NamedTuple):
    """State of `muon`.

    Attributes:
        step: Number of steps taken.
        momentum: M in the structure of the parameters, float32 or wider.
    """

    step: Int32[Array, ""]
    momentum: Any


@_elsewhere.muon
def muon(
    learning_rate: Rate,
    *,
    matrix: str | Sequence[Rule] = "i o -> , i, o",
    momentum: ArrayLike = 0.95,
    nesterov: bool = True,
    ns: str | Sequence[Sequence[float]] = "jordan",
    scale: Scale = "spectral",
    weight_decay: Rate = 0.0,
    decay: Mode = "coupled",
    exchange: Where = "auto",
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
    chunk_bytes: int = 2**28,
) -> optax.GradientTransformation:
    """Moves each matrix W by -η s O - η λ W, with O the orthogonalized momentum.

    Updates are in the parameter's dtype. Params are required only for weight decay. Under
    `optax.inject_hyperparams` write `static_args=("dtype", "chunk_bytes")`.

    Args:
        learning_rate: η, a number or a schedule of the step, counted from 0.
        matrix: Axis string: the axes of a parameter, then its batch, input and output axes, as in
            "l i h d -> l h, i, d" for heads in a stack of layers (see `matrix.py`). Or pairs of a
            name pattern and such a string; the first match decides.
        momentum: μ.
        nesterov: Use Nesterov's momentum.
        ns: Preset or coefficients; see `orthogonalize`.
        scale: s. "spectral" is √max(1, out/in) (Jordan). "rms" is 0.2 √max(in, out), which gives an
            update the root mean square of Adam's (arXiv 2502.16982, equation 4), so Adam's learning
            rate and decay fit. "width" is √(out/in), for which the best η does not depend on the
            width (arXiv 2310.17813, condition 1).
        weight_decay: λ.
        decay: Mode of `dovetail_optim.decay`.
        exchange: `where` of `exchange.map_whole`. On an Auto mesh under `jax.jit`, pass the
            shardings as a tree like all parameters, or have the mesh in context.
        dtype: Dtype of the products.
        chunk_bytes: Largest stack of matrices per device that is processed at once.

    Raises:
        ValueError: An argument is invalid. At `init` and during tracing of `update`: a parameter's
            rank does not fit its axis string.

    Example:

        >>> import optax
        >>> from dovetail_optim import route
        >>> tx = route([("layers.**.kernel", muon(0.02)), ("**", optax.adamw(1e-3))])
        >>> tx = muon(0.02, matrix=[("**.q.kernel", "i h d -> h, i, d"), ("**", "i o -> , i, o")])
    """
    check_decaying(learning_rate, weight_decay, decay)
    check_where(exchange)
    check_share("momentum", momentum)
    check_known("dtype", dtype)
    check_count("chunk_bytes", chunk_bytes, example="2**28")
    _check_scale(scale)
    settings = _Muon(
        learning_rate=learning_rate,
        rules=parse_rules(matrix),
        momentum=momentum,
        nesterov=nesterov,
        rows=coefficients(ns),
        scale=scale,
        weight_decay=weight_decay,
        decay=decay,
        exchange=exchange,
        dtype=dtype,
        chunk_bytes=chunk_bytes,
    )
    return optax.GradientTransformation(settings.init, settings.update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Muon(Decaying):
    """The two functions of the transformation, with the parsed arguments of `muon`."""

    rules: Matrices | list[tuple[str, Matrices]]
    momentum: Any
    nesterov: bool
    rows: tuple[Row, ...]
    scale: Scale
    exchange: Where
    dtype: jax.typing.DTypeLike
    chunk_bytes: int

    def learning_rate_of(self, state: Any) -> Any:
        """Returns the rate of the next update, or None for a state of another transformation."""
        return at(self.learning_rate, state.step) if isinstance(state, MuonState) else None

    def init(self, params: Any) -> MuonState:
        with jax.transfer_guard("allow"):
            assign(self.rules, params)
            return MuonState(step=jnp.zeros([], jnp.int32), momentum=jax.tree.map(_zeros, params))

    def update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, MuonState]:
        weights = self.weights("muon", updates, params)
        matrices = assign(self.rules, updates)
        average = jax.tree.map(self.average, state.momentum, updates)
        ahead = jax.tree.map(self.average, average, updates) if self.nesterov else average
        where = self.exchange
        if not isinstance(where, str):
            where = pick(where, updates, what="exchange")
        orthogonal = map_whole(
            lambda stack: orthogonalize(stack, ns=self.rows, dtype=self.dtype),
            jax.tree.leaves(ahead),
            matrices,
            where=where,
            dtype=self.dtype,
            chunk_bytes=self.chunk_bytes,
        )
        moved = [
            self.change(o, w, folding, state.step).astype(w.dtype)
            for o, w, folding in zip(orthogonal, weights, matrices, strict=True)
        ]
        after = jnp.asarray(optax.safe_increment(state.step))
        state = MuonState(step=after, momentum=average)
        return jax.tree.unflatten(jax.tree.structure(updates), moved), state

    def average(self, m: Array, g: Array) -> Array:
        """Returns μ M + (1 - μ) G."""
        return self.momentum * m + (1 - self.momentum) * g.astype(m.dtype)

    def change(self, o: Array, w: Array, folding: Matrices, step: Array) -> Array:
        """Returns the change of W before rounding to its dtype."""
        eta = jnp.asarray(at(self.learning_rate, step), wide(w.dtype))
        moved = -eta * _factor(self.scale, *folding.sizes(w.shape)[1:]) * o.astype(eta.dtype)
        if not self.decays:
            return moved
        return decay_update(moved, w, amount=self.amount(step), mode=self.decay)


def _zeros(p: Array) -> Array:
    return jnp.zeros_like(p, dtype=wide(p.dtype))


def _factor(scale: Scale, rows: int, columns: int) -> float:
    """Returns s for a matrix with `rows` inputs and `columns` outputs."""
    if scale == "rms":
        return 0.2 * math.sqrt(max(rows, columns))
    ratio = columns / rows
    return math.sqrt(ratio if scale == "width" else max(1.0, ratio))


def _check_scale(scale: str) -> None:
    if scale not in get_args(Scale):
        raise ValueError(
            f"scale must be one of {list(get_args(Scale))}; got {scale=}; write 'spectral' for "
            "that of Jordan and of torch.optim.Muon"
        )
