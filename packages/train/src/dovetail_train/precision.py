# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compute dtype of a model: one cast, inside the loss."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail_train._patterns import Patterns, each_of, matches, name_of, names_of, select


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtype of the parameters inside the loss.

    Parameters, gradients and optimizer state keep their dtype (float32 in nearly every run): the
    cast is differentiated, so its transpose returns gradients in it. Batches are not cast, since a
    bfloat16 mask could not count above 256.

    Args:
        compute: "float32" (no cast) or "bfloat16". float16 would need loss scaling.
        keep: Name patterns of parameters without a cast, such as "**.norm.scale": `*` within a
            segment, `**` for any number of segments.
    """

    compute: Literal["float32", "bfloat16"]
    keep: Patterns = ()

    def __post_init__(self) -> None:
        if self.compute not in ("float32", "bfloat16"):
            raise ValueError(
                f'compute must be "float32" or "bfloat16", got compute={self.compute!r}; '
                f'float16 needs loss scaling, so write Precision(compute="bfloat16")'
            )
        if self.keep != ():
            each_of(self.keep)  # raises for what is no pattern

    def check(self, *trees: Any) -> None:
        """Raises ValueError if a pattern of `keep` matches no parameter of the trees."""
        if self.keep != ():
            select(self.keep, [name for tree in trees for name in names_of(tree)])

    def cast(self, params: Any) -> Any:
        """Casts float parameters to the compute dtype, except those in `keep`."""
        if self.compute == "float32":
            return params
        dtype = jnp.dtype(self.compute)

        def leaf(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
            kept = self.keep != () and matches(self.keep, name_of(path))
            return x if kept or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)

        return jax.tree_util.tree_map_with_path(leaf, params)
