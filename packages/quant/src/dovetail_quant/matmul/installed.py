# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Products of other installed packages, found by their entry points.

A distribution offers a product for packed codes on a CPU under a name of its own:

    [project.entry-points."dovetail_quant.products"]
    native = "package.module:product"

`matmul="auto"` takes it wherever it does not refuse, `explain` lists it, and `matmul="own"` leaves
it out. This package imports no other for it, and the module of an entry is imported at the first
choice on a CPU. dovetail-stack declares the compiled product of dovetail-kernels.
"""

import functools
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, runtime_checkable

from jax.typing import DTypeLike
from jaxtyping import Array, Float

from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.codes.spec import Spec

GROUP = "dovetail_quant.products"


@runtime_checkable
class InstalledProduct(Protocol):
    """The object behind an entry point. It multiplies `PackedWeights`, whose layout stays."""

    def refuse(self, spec: Spec, *, rows: int, inputs: int, dtype: DTypeLike) -> str | None:
        """Returns the reason against a call, to be read after the product's name, or None.

        Args:
            spec: The codes.
            rows: Rows of x, over all its batch axes.
            inputs: K.
            dtype: Dtype of x.
        """
        ...

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x, as `Matmul` does."""
        ...


def names() -> list[str]:
    """Returns the names of all entries, without an import of them."""
    return list(_entries())


@functools.cache
def load(name: str) -> InstalledProduct | str:
    """Returns the product of an entry, or the reason why it cannot be used, after one warning."""
    entry = _entries()[name]
    try:
        product = entry.load()
        if isinstance(product, InstalledProduct):
            return product
        reason = f"is {type(product).__name__} without refuse and a call"
    except Exception as error:  # of any module, which must not break products of our own
        reason = f"cannot be imported: {type(error).__name__}: {error}"
    warnings.warn(
        f"every entry of {GROUP} must be a product, got {entry.value!r}, which {reason}; repair "
        "its package, or write matmul='own'",
        RuntimeWarning,
        stacklevel=2,
    )
    return reason


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
