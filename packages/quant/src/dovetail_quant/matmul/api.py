# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of a product of activations and quantized weights, ours or a kernel library's."""

from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.codes.spec import Act


@runtime_checkable
class Matmul(Protocol):
    """A product in two functions: weights are prepared once and multiplied many times.

    Prepared weights are any pytree of arrays; the caller keeps it and may jit over it, stack it or
    place it on devices.
    """

    @property
    def act(self) -> Act | None:
        """Rounding of x, as in `Spec.act`; None for none."""
        ...

    def prepare(self, w: QArray | PackedWeights) -> Any:
        """Converts the codes [K, N], or packed weights of a file, to the form of this product."""
        ...

    def codes(self, prepared: Any) -> QArray:
        """Inverts `prepare`, bit for bit."""
        ...

    def __call__(self, x: Float[Array, "*batch K"], prepared: Any) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x, accumulated in float32 or wider."""
        ...


@runtime_checkable
class Lookup(Protocol):
    """The additional operation of an embedding's product: its rows, the columns of w[K, N]."""

    def take(self, prepared: Any, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """Returns w[:, index] in float32; NaN for an index outside 0 to N - 1."""
        ...


MatmulOption: TypeAlias = Matmul | Literal["auto", "own"]
