# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which product each site of a quantized model uses, why, and what one call of it reads."""

import dataclasses

import jax
from flax import nnx

from dovetail_quant.compare import quantized_kernels
from dovetail_quant.kernel import Kernel
from dovetail_quant.matmul.choose import Auto, Choice, choose
from dovetail_quant.spec import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """The product of a site. bytes_read: of the weight as it lies in memory, padding included, of
    all matrices of experts; float_bytes: of the float weight in its place."""

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


def explain(quantized: nnx.Module, *, rows: int) -> list[Explanation]:
    """One explanation for each quantized site, in their order, for calls with so many rows of x.

    The platform is JAX's default backend.

    Raises ValueError for a negative number of rows, and a model without a quantized site.

        print(*explain(quantized, rows=1), sep="\\n")
    """
    found = quantized_kernels(quantized)
    if not found:
        raise ValueError(
            "a quantized model has a quantized site, got none; write explain(apply(model, plan))"
        )
    return [
        Explanation(
            path=path,
            shape=kernel.shape,
            spec=kernel.spec,
            choice=_choice(kernel, rows),
            bytes_read=sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(kernel.prepared)),
            float_bytes=kernel.size * kernel.dtype.itemsize,
        )
        for path, kernel in found.items()
    ]


def _choice(kernel: Kernel, rows: int) -> Choice:
    if isinstance(kernel.matmul, Auto):
        return choose(
            kernel.spec,
            platform=kernel.matmul.platform or jax.default_backend(),
            rows=rows,
            inputs=kernel.axes.sizes[1],
            dtype=kernel.dtype,
        )
    return Choice(product=type(kernel.matmul).__name__, reason="was passed as matmul=", refused={})
