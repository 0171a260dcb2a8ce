# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loop carries inside of a user's `jax.shard_map`.

There the type of an array contains the mesh axes over whose devices its value varies (its `vma`,
"varying manual axes"). A loop that begins with fresh zeros and adds data has carries of two types,
which JAX refuses. Operations therefore make their arguments vary alike, and first carries vary with
the arguments. JAX transposes the first step to a sum: the gradient of an argument that is equal on
all devices is summed over them.
"""

from typing import Any, TypeVar

import jax
from jax import lax

TreeT = TypeVar("TreeT")


def varying(tree: TreeT, *like: Any) -> TreeT:
    """Returns `tree` with arrays that vary over all mesh axes of `like`; outside of maps unchanged.

    Args:
        tree: Pytree of arrays.
        like: Pytrees of arrays.
    """
    return vary_over(frozenset().union(*map(varies, jax.tree.leaves(like))), tree)


def vary_over(axes: frozenset[str], tree: TreeT) -> TreeT:
    """Returns `tree` with arrays that vary over `axes` too."""
    return jax.tree.map(lambda array: _cast(array, axes), tree) if axes else tree


def varies(array: Any) -> frozenset[str]:
    """Returns the mesh axes over whose devices the value of `array` varies, by its type."""
    return jax.typeof(array).manual_axis_type.varying


def _cast(array: Any, axes: frozenset[str]) -> Any:
    missing = tuple(sorted(axes - varies(array)))
    return lax.pcast(array, missing, to="varying") if missing else array
