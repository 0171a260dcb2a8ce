# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w with each group of each row of x rounded to int4 or fp8 (Qwix's tiled activations).

A row is rounded like a column of weights, by the same functions. Groups of x are those of w. With
one group of integers the sums are integers of int8 products; otherwise the levels of x are floats
and codes are decoded by blocks, which is faster than a product for each group (see w8a8).
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from dovetail_quant.codes.codes import decode, encode, scales
from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul import blocked, rows
from dovetail_quant.matmul.w8a8 import LONGEST, products


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedRows(rows.OfPacked):
    """The product that rounds each group of each row of x, as `act` of a spec says.

    Each number of x moves by half a step at most: max|x| / 15 of its group for "int4". "fp8" keeps
    3 bits after the first. The gradient treats rounding as the identity.

    Args:
        act: "int4" or "fp8".

    Example:

        >>> import jax
        >>> from dovetail_quant.codes.codes import quantize
        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> matmul = GroupedRows(act="int4")
        >>> codes = quantize(w, Spec(weight="int4", group=128))
        >>> matmul(jnp.ones((3, 256)), matmul.prepare(codes)).shape
        (3, 64)
    """

    act: Literal["int4", "fp8"]

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Returns rounded x times w, in the dtype of x. Raises like `W8A8`."""
        run = _int4_forward if self.act == "int4" else _fp8_forward
        return rows.call(run, blocked.backward, x, self.checked(prepared))

    def checked(self, packed: PackedWeights) -> PackedWeights:
        """Returns the weights; ValueError unless `act` and codes fit."""
        wanted = ("int8", "int4") if self.act == "int4" else ("fp8",)
        if packed.weight not in wanted:
            raise ValueError(
                f"act={self.act!r} multiplies {' or '.join(wanted)}, got codes={packed.weight}; "
                f"write Spec(weight={self.act!r}, act={self.act!r})"
            )
        return packed


def rounded_groups(
    x: Float[Array, "R K"], act: Literal["int4", "fp8"], *, groups: int
) -> tuple[Array, Float[Array, "R G"]]:
    """Returns the codes [R, K] and the scales [R, G] of x, rounded by groups of a row.

    Args:
        x: Rows.
        act: Type of the codes.
        groups: Groups of a row.
    """
    spec = Spec(weight=act, group=x.shape[1] // groups)
    columns = x.astype(jnp.float32).T
    scale, _ = scales(columns, spec)
    return encode(columns, scale, None, spec).T, scale.T


def levels(x: Float[Array, "R K"], act: Literal["int4", "fp8"], *, groups: int) -> Array:
    """Returns x rounded by groups of a row, in float32 [R, K].

    Args:
        x: Rows.
        act: Type of the codes.
        groups: Groups of a row.
    """
    codes, scale = rounded_groups(x, act, groups=groups)
    return decode(codes.T, scale.T, None, Spec(weight=act)).T


def _int4_forward(x: Array, packed: PackedWeights) -> Array:
    if packed.groups > 1 or packed.group > LONGEST:
        return blocked.forward(levels(x, "int4", groups=packed.groups), packed).astype(x.dtype)
    codes, scale = rounded_groups(x, "int4", groups=1)
    return (products(codes.astype(jnp.int8), packed) * scale).astype(x.dtype)


def _fp8_forward(x: Array, packed: PackedWeights) -> Array:
    return blocked.forward(levels(x, "fp8", groups=packed.groups), packed).astype(x.dtype)
