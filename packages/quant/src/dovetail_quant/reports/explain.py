# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The product of each quantized site, the reason, and the bytes that a call reads."""

import dataclasses

import jax
from flax import nnx

from dovetail_quant import _elsewhere
from dovetail_quant._explained import Explained
from dovetail_quant.codes.codes import nbytes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.choose import Auto, Choice, choose
from dovetail_quant.reports.compare import quantized_kernels
from dovetail_quant.sites.kernel import Kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteProduct:
    """The product of a site.

    Attributes:
        path: Path of the site.
        shape: Shape of the weight.
        spec: Its spec.
        choice: The product and the reasons.
        bytes_read: Bytes of the weight in memory, with padding, over all experts.
        float_bytes: Bytes of the float weight.
    """

    path: str
    shape: tuple[int, ...]
    spec: Spec
    choice: Choice
    bytes_read: int
    float_bytes: int

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"{self.path} [{shape}] {self.spec.weight}: reads {self.bytes_read} of "
            f"{self.float_bytes} bytes by {self.choice}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Explained):
    """The product of each quantized site. Print it to read a line for each.

    Attributes:
        rows: The sites, in their order.
    """

    rows: tuple[SiteProduct, ...]

    def _summary(self) -> str:
        read = sum(row.bytes_read for row in self.rows)
        whole = sum(row.float_bytes for row in self.rows)
        return f"{len(self.rows)} sites read {read:,} of {whole:,} bytes"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.rows), self._summary()])


@_elsewhere.call
def explain(quantized: nnx.Module, *, rows: int) -> Explanation:
    """Returns the product of each quantized site, for calls with `rows` rows of x.

    The platform is JAX's default backend.

    Raises:
        ValueError: `rows` is negative, or the model has no quantized site.

    Example:

        >>> from dovetail_quant import apply, plan
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> quantized = apply(model, plan(model, [("**", Spec(weight="int8"))]))
        >>> explain(quantized, rows=1).rows[0].bytes_read
        2176
    """
    kernels = quantized_kernels(quantized)
    if not kernels:
        raise ValueError(
            "a quantized model has a quantized site, got none; write explain(apply(model, plan))"
        )
    products = (
        SiteProduct(
            path=path,
            shape=kernel.shape,
            spec=kernel.spec,
            choice=_choice(kernel, rows),
            bytes_read=nbytes(kernel.prepared),
            float_bytes=kernel.size * kernel.dtype.itemsize,
        )
        for path, kernel in kernels.items()
    )
    return Explanation(rows=tuple(products))


def _choice(kernel: Kernel, rows: int) -> Choice:
    if isinstance(kernel.matmul, Auto):
        return choose(
            kernel.spec,
            platform=kernel.matmul.platform or jax.default_backend(),
            rows=rows,
            inputs=kernel.axes.sizes[1],
            dtype=kernel.dtype,
            installed=kernel.matmul.installed,
        )
    return Choice(product=type(kernel.matmul).__name__, reason="was passed as matmul=", refused={})
