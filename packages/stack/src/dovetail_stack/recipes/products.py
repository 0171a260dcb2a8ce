# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Products of quantized weights by dovetail-kernels.

Pass `KernelsProduct()` as `matmul` to `dovetail_quant.apply` or `load`. The products of
dovetail-quant need no other package. Both packages share one layout, so the kernels multiply the
stored codes.
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
    """x w by `dovetail_kernels.quantized_matmul`, for int8 and int4 codes.

    `act` must equal `Spec.act` of the sites: "int8" rounds each row of x.

    Example:

        >>> from dovetail_quant import Spec, apply, plan
        >>> from flax import nnx
        >>> model = nnx.Sequential(nnx.Linear(64, 32, rngs=nnx.Rngs(0)))
        >>> int8 = plan(model, [("**", Spec(weight="int8"))])
        >>> small = apply(model, int8, matmul=KernelsProduct())
    """

    act: Literal["int8"] | None = None

    def prepare(self, w: QArray | PackedWeights) -> PackedWeights:
        """Packs the codes [K, N]. Raises ValueError for other codes."""
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
        """Computes x w in the dtype of x."""
        if 0 in x.shape[:-1]:
            return jnp.zeros((*x.shape[:-1], prepared.out_features), x.dtype)
        y = quantized_matmul(x.reshape(-1, x.shape[-1]), prepared, activations=self.act)
        return y.reshape(*x.shape[:-1], -1)
