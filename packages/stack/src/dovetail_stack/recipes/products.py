# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized weights by the products of dovetail-kernels, the native ones among them.

It plugs into `dovetail_quant.apply(model, plan, matmul=...)` and `load`, whose own products need
nothing installed beside them.
"""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_kernels import Packed, pack, quantized_matmul, unpack

BITS: dict[str, int] = {"int8": 8, "int4": 4}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelsProduct:
    """x w by `dovetail_kernels.quantized_matmul`, for codes of int8 and int4.

    act: as `Spec.act` of the sites: "int8" rounds each row of x.

        small = apply(model, plan(model, [("**", Spec(weight="int8"))]), matmul=KernelsProduct())
    """

    act: Literal["int8"] | None = None

    def prepare(self, w: QArray) -> Packed:
        """The codes [K, N] as the kernels read them; ValueError for nf4 and float8."""
        if str(w.qvalue.dtype) not in BITS:
            raise ValueError(
                f"dovetail-kernels multiplies codes of int8 and int4, got codes={w.qvalue.dtype}; "
                "write Spec(weight='int4', group=128), or apply without matmul="
            )
        return pack(w)

    def codes(self, prepared: Packed) -> QArray:
        """The inverse, bit for bit."""
        kind = jnp.int4 if prepared.bits == 4 else jnp.int8
        zeros = None if prepared.zeros is None else prepared.zeros.T.astype(kind)
        # With a scale of 1 and no zero point, weights are their codes.
        plain = dataclasses.replace(prepared, scales=jnp.ones_like(prepared.scales), zeros=None)
        return QArray(unpack(plain).astype(kind), prepared.scales.T, zeros, kind)

    def take(self, prepared: Packed, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """w[:, index] in float32; NaN for an index that is none of 0 to N - 1."""
        flat = index.reshape(-1)

        def rows(a: Any) -> Any:
            return None if a is None else jnp.take(a, flat, axis=0, mode="clip")

        one = dataclasses.replace(
            prepared,
            values=rows(prepared.values),
            scales=rows(prepared.scales),
            zeros=rows(prepared.zeros),
        )
        inside = (flat >= 0) & (flat < prepared.out_features)
        return jnp.where(inside[:, None], unpack(one).T, jnp.nan).reshape(*index.shape, -1)

    def __call__(self, x: Float[Array, "*batch K"], prepared: Packed) -> Float[Array, "*batch N"]:
        """x w in the dtype of x."""
        if 0 in x.shape[:-1]:
            return jnp.zeros((*x.shape[:-1], prepared.out_features), x.dtype)
        y = quantized_matmul(x.reshape(-1, x.shape[-1]), prepared, activations=self.act)
        return y.reshape(*x.shape[:-1], -1)
