# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Matches the leaves of two trees by name."""

from typing import Any

import jax

from dovetail_optim._patterns import few, names_of, near


def pick(given: Any, tree: Any, *, what: str) -> list[Any]:
    """Returns, for each leaf of `tree`, the leaf of `given` with the same name.

    `given` may hold further leaves. So a tree over all parameters also serves a transformation that
    `route` gives only some of them.

    Args:
        given: Leaves to choose from.
        tree: Names to look up.
        what: Name of the argument `given`, for the error message.

    Raises:
        ValueError: `given` lacks a leaf.
    """
    known = dict(zip(names_of(given), jax.tree.leaves(given), strict=True))
    missing = [wanted for wanted in names_of(tree) if wanted not in known]
    if missing:
        raise ValueError(
            f"{what} must name every parameter; got none for {few(missing)}; the nearest of "
            f"{len(known)} names: {near(missing[0], known)}"
        )
    return [known[wanted] for wanted in names_of(tree)]
