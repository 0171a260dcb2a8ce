# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""In which dtype a model computes: one cast, inside the loss."""

import dataclasses
import fnmatch
from typing import Any, Literal

import jax
import jax.numpy as jnp


def leaf_name(path: tuple[Any, ...]) -> str:
    """The dotted name of a leaf, `layers.7.attn.q.kernel`, from its jax.tree_util key path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """The dtype that parameters are cast to inside the loss.

    Parameters, gradients and optimizer state keep the dtype that they came with (float32 in
    nearly every run): the cast is differentiated, so its transpose returns gradients to them.
    Batches are not cast: a bfloat16 mask could not count above 256.

    compute: "float32" (no cast) or "bfloat16". float16 would need loss scaling.
    keep: patterns (`fnmatch`) of dotted parameter names that are not cast, such as "*norm*".
    """

    compute: Literal["float32", "bfloat16"]
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.compute not in ("float32", "bfloat16"):
            raise ValueError(
                f'compute must be "float32" or "bfloat16", got compute={self.compute!r}; '
                f'float16 needs loss scaling, so write Precision(compute="bfloat16")'
            )
        if isinstance(self.keep, str):
            raise TypeError(
                f"keep must be a tuple of patterns, got keep={self.keep!r}; "
                f"write keep=({self.keep!r},)"
            )

    def check(self, params: Any) -> None:
        """Raises ValueError when a pattern of `keep` matches no parameter."""
        names = [leaf_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        for pattern in self.keep:
            if not fnmatch.filter(names, pattern):
                raise ValueError(
                    f"each pattern of keep must match a parameter, got keep={self.keep!r} where "
                    f"{pattern!r} matches none of {len(names)}; names look like {names[0]!r}"
                )

    def cast(self, params: Any) -> Any:
        """The float parameters in the compute dtype, those that `keep` matches as they are."""
        if self.compute == "float32":
            return params
        dtype = jnp.dtype(self.compute)

        def leaf(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
            name = leaf_name(path)
            kept = any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep)
            return x if kept or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)

        return jax.tree_util.tree_map_with_path(leaf, params)
