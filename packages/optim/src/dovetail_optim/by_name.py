# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Leaves of one tree for those of another, by their names."""

from typing import Any

import jax

from dovetail_optim._patterns import few, names_of, near


def pick(given: Any, tree: Any, *, what: str) -> list[Any]:
    """For each leaf of `tree` the leaf of that name in `given`, which may have others too.

    So what is said of all parameters serves where a route leaves a transformation some of them.
    what: the argument that `given` is. Raises ValueError for a leaf that `given` has not.
    """
    known = dict(zip(names_of(given), jax.tree.leaves(given), strict=True))
    missing = [wanted for wanted in names_of(tree) if wanted not in known]
    if missing:
        raise ValueError(
            f"{what} must name every parameter; got none for {few(missing)}; the nearest of "
            f"{len(known)} names: {near(missing[0], known)}"
        )
    return [known[wanted] for wanted in names_of(tree)]
