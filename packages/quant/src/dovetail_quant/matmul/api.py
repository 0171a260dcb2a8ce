# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a product of activations and quantized weights has to offer, here or in a kernel library."""

from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.layout import PackedWeights


@runtime_checkable
class Matmul(Protocol):
    """A product plugs in as two functions: weights are laid out once, and multiplied many times.

    The prepared weights are any pytree of arrays; the caller keeps it and may jit over it, stack it
    or place it on devices.
    """

    @property
    def act(self) -> Literal["int8"] | None:
        """How it rounds x, as `Spec.act` says it; None: not at all."""
        ...

    def prepare(self, w: QArray | PackedWeights) -> Any:
        """The codes [K, N], or as a file holds them packed, as this product reads them."""
        ...

    def codes(self, prepared: Any) -> QArray:
        """The inverse, bit for bit."""
        ...

    def __call__(self, x: Float[Array, "*batch K"], prepared: Any) -> Float[Array, "*batch N"]:
        """x w in the dtype of x, accumulated in float32 at least."""
        ...


@runtime_checkable
class Lookup(Protocol):
    """What the product of an embedding has to offer besides: its rows, the columns of w[K, N]."""

    def take(self, prepared: Any, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """w[:, index] in float32; NaN for an index that is none of 0 to N - 1."""
        ...
