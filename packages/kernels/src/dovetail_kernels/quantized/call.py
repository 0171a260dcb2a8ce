# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One call of `quantized_matmul`, in the form given to every implementation."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail_kernels.dispatch import Call, Device
from dovetail_kernels.quantized.layout import PackedWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedMatmulCall(Call):
    """Sizes, dtypes and options of one call of `quantized_matmul`.

    Attributes:
        rows: M, rows of x. An int, or a symbolic dimension of `jax.export`.
        inputs: D, columns of x.
        outputs: F, output channels.
        dtype: Dtype of x.
        bits: Bits per weight: 4, 8 or 16.
        groups: Groups of inputs per output channel.
        asymmetric: Whether the weights have zero points.
        activations: "int8" or None.
        device: Device of the call.
    """

    _FACTS = frozenset(("rows", "inputs", "outputs", "dtype", "bits", "groups", "device"))

    rows: Any
    inputs: int
    outputs: int
    dtype: np.dtype
    bits: int
    groups: int
    asymmetric: bool
    activations: str | None
    device: Device

    @property
    def precision(self) -> str:
        """Precision of the products in words. No setting of JAX lowers it."""
        return f"products in {np.promote_types(self.dtype, np.float32).name}"


class QuantizedMatmulInputs(NamedTuple):
    """The arrays of a call. `run(call, inputs)` returns [M, F] in x's dtype.

    Its gradient is the operation's, dx = dy wᵀ: an implementation needs none.

    Attributes:
        x: Activations [M, D], not yet rounded.
        w: The weights.
    """

    x: jax.Array
    w: PackedWeights
