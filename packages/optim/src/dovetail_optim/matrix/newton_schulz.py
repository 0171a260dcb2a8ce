# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The nearest orthogonal matrix, by matrix products alone (Newton-Schulz).

An odd polynomial p(x) = a x + b x³ + c x⁵ of a matrix, X ↦ aX + (bA + cA²)X with A = XXᵀ, acts on
the singular values of X and keeps its singular vectors. A few such steps take all singular values
that are not too small near 1; the result is the polar factor UVᵀ of UΣVᵀ. An SVD is exact, and an
order of magnitude slower on hardware made for matrix products.

The preset decides how near 1, and how small a singular value may be beside the Frobenius norm:

- "jordan": five times the same steep polynomial, which does not converge. Values from 1e-3 on land
  in [0.47, 1.21] (kellerjordan.github.io/posts/muon).
- "polar_express": five polynomials, each the best for the interval left by the one before
  (arXiv 2505.16932, Algorithm 1, with its safety factor 1.01). Values from 1e-3 on land in
  [0.84, 1.13].
- "exact": all seven of them and one more of the last. Values from 1e-3 on land within 1e-7 of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Row = tuple[float, float, float]
Preset = Literal["jordan", "polar_express", "exact"]

_JORDAN = (3.4445, -4.7750, 2.0315)
# arXiv 2505.16932, Algorithm 1: best for singular values in [1e-3, 1]; before the safety factor.
_POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
_LAST = (1.875, -1.25, 0.375)
# Rounding may push a singular value above the interval for which a row is made, where the
# polynomial grows without bound: each row is made for values 1 % larger. The first is made for 2 %:
# the algorithm also divides by 1.01 times the norm.
_SAFETY = 1.01


def _safe(row: Row, factor: float) -> Row:
    a, b, c = row
    return a / factor, b / factor**3, c / factor**5


_SAFE = tuple(_safe(row, _SAFETY if i else _SAFETY**2) for i, row in enumerate(_POLAR_EXPRESS))

ROWS: dict[str, tuple[Row, ...]] = {
    "jordan": (_JORDAN,) * 5,
    "polar_express": _SAFE[:5],
    "exact": (*_SAFE, _LAST),
}
# torch.optim.Muon's: a matrix of a smaller norm is not blown up to an orthogonal one.
_SMALLEST_NORM = 1e-7


def coefficients(ns: str | Sequence[Sequence[float]]) -> tuple[Row, ...]:
    """Returns (a, b, c) for each iteration. Raises ValueError for an unknown preset or wrong
    rows.
    """
    if isinstance(ns, str):
        if ns not in ROWS:
            raise ValueError(
                f"ns must be one of {list(ROWS)}, or rows (a, b, c) for a x + b x³ + c x⁵; got "
                f"{ns=}; write ns='jordan'"
            )
        return ROWS[ns]
    if not ns or any(not isinstance(row, Sequence) or len(row) != 3 for row in ns):
        raise ValueError(
            "ns must hold at least one row of three numbers (a, b, c), a row an iteration; got "
            f"{ns=}; write ns=({_JORDAN},) * 5"
        )
    return tuple((float(a), float(b), float(c)) for a, b, c in ns)


@jax.transfer_guard("allow")
def orthogonalize(
    x: Float[Array, "*batch m n"],
    *,
    ns: str | Sequence[Sequence[float]] = "jordan",
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
) -> Float[Array, "*batch m n"]:
    """Returns U p(Σ / ‖x‖) Vᵀ for each matrix x = UΣVᵀ: nearly its polar factor UVᵀ, in x's dtype.

    A matrix of zeros gives zeros. A matrix of Frobenius norm below 1e-7 gives a result smaller in
    proportion.

    Args:
        x: Matrices [..., m, n].
        ns: Steps σ ← a σ + b σ³ + c σ⁵ of the singular values, relative to the norm. Those from
            1e-3 on end in [0.47, 1.21] with "jordan" (five equal steps), in [0.84, 1.13] with
            "polar_express" (five steps, 2505.16932), within 1e-7 of 1 with "exact" (eight steps).
            Or a row (a, b, c) for each step.
        dtype: Dtype of the products. bfloat16 costs about 1 % of singular values; float32 products
            run at full precision.

    Returns:
        Matrices [..., m, n] in x's dtype.

    Raises:
        ValueError: x has fewer than two axes, or `ns` is unknown.

    Example:

        >>> import jax, jax.numpy as jnp
        >>> w = jax.random.normal(jax.random.key(0), (3, 64, 32))
        >>> u = orthogonalize(w, ns="exact", dtype=jnp.float32)
        >>> bool(jnp.abs(u.mT @ u - jnp.eye(32)).max() < 1e-5)
        True
    """
    if jnp.ndim(x) < 2:
        raise ValueError(
            f"orthogonalize needs matrices [..., m, n]; got x of shape {jnp.shape(x)}; write "
            f"x[None] for one row"
        )
    rows = coefficients(ns)
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).astype(dtype)  # so that A = yyᵀ is of the smaller side
    # The square of a bfloat16 sum in bfloat16 would stop growing at 256 equal terms.
    wide = y.astype(jnp.float32) if jnp.finfo(dtype).bits < 32 else y
    # The square of 1e20 is no float32: of parts of the largest, all are.
    top = jnp.max(jnp.abs(wide), axis=(-2, -1), keepdims=True, initial=0)
    wide = wide / jnp.where(top == 0, 1, top)
    norm = jnp.sqrt(jnp.sum(wide * wide, axis=(-2, -1), keepdims=True))
    size = jnp.minimum(1, norm * top / _SMALLEST_NORM)
    y = (wide / jnp.where(norm == 0, 1, norm) * size).astype(dtype)
    for a, b, c in rows:
        y = _step(y, a, b, c)
    return (y.mT if tall else y).astype(x.dtype)


def _step(
    x: Float[Array, "*batch m n"], a: float, b: float, c: float
) -> Float[Array, "*batch m n"]:
    """Computes a x + (b A + c A²) x with A = x xᵀ."""
    gram = _product(x, x.mT)
    return a * x + _product(b * gram + c * _product(gram, gram), x)


def _product(x: Float[Array, "*b m k"], y: Float[Array, "*b k n"]) -> Float[Array, "*b m n"]:
    # TF32 in place of float32 would leave three digits where the caller asked for seven.
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
