# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized weights by the products of dovetail-kernels, the native ones among them.

It plugs into `dovetail_quant.apply(model, plan, matmul=...)` and `load`, whose own products need
nothing installed beside them. Both packages have one layout: kernels multiplies what quant holds.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from dovetail_kernels import quantized_matmul
from dovetail_quant.layout import PackedWeights
from dovetail_quant.matmul.blocked import Blocked


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelsProduct(Blocked):
    """x w by `dovetail_kernels.quantized_matmul`, for codes of int8 and int4.

    act: as `Spec.act` of the sites: "int8" rounds each row of x.

        small = apply(model, plan(model, [("**", Spec(weight="int8"))]), matmul=KernelsProduct())
    """

    act: Literal["int8"] | None = None

    def prepare(self, w: QArray | PackedWeights) -> PackedWeights:
        """The codes [K, N] packed; ValueError for nf4, float8 and odd groups of int4."""
        packed = super().prepare(w)
        if packed.bits is None or (packed.bits == 4 and packed.group % 2):
            raise ValueError(
                "dovetail-kernels multiplies codes of int8, and of int4 in even groups, got codes="
                f"{packed.weight}, group={packed.group}; write Spec(weight='int4', group=128), or "
                "apply without matmul="
            )
        return packed

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """x w in the dtype of x."""
        if 0 in x.shape[:-1]:
            return jnp.zeros((*x.shape[:-1], prepared.out_features), x.dtype)
        y = quantized_matmul(x.reshape(-1, x.shape[-1]), prepared, activations=self.act)
        return y.reshape(*x.shape[:-1], -1)
