# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Leaves of a pytree by name, and the globs that choose among them.

A name joins the keys on the way to a leaf: `layers/0/attention/q/kernel`. The same parameters have
the same names as an `nnx.State`, as its pure dict of arrays, and as the state that
`nnx.Optimizer` passes: a Flax variable is a pytree whose one child is the attribute `value`, which
is no part of the name (a key `value` of a dict is).

In a pattern `*` stands for any characters within one key, `**` for any keys, none included.
"""

import difflib
import functools
import re
from collections.abc import Iterable
from typing import Any

import jax

_SHOWN = 8  # names in an error, so that it stays readable for a model of thousands


def names(tree: Any) -> list[str]:
    """The name of each leaf of `tree`, in the order of `jax.tree.leaves`."""
    return [name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def name(path: tuple[Any, ...]) -> str:
    """The name of a leaf, from its path of JAX's keys."""
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value":
        path = path[:-1]
    return "/".join(map(_key, path))


def _key(key: Any) -> str:
    """One key as its owner writes it: a dict's key, a field's name, an index."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name is as the pattern says."""
    return _expression(pattern).fullmatch(name and name + "/") is not None


@functools.lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str]:
    keys = pattern.split("/")
    if not all(keys):
        raise ValueError(
            f"a pattern is keys joined by single slashes, as in 'layers/*/kernel'; got {pattern!r}"
        )
    # Every key ends in a slash here, so that `**` may stand for none.
    parts = (
        "(?:[^/]+/)*"
        if key == "**"
        else "".join("[^/]*" if c == "*" else re.escape(c) for c in key) + "/"
        for key in keys
    )
    return re.compile("".join(parts))


def pick(given: Any, tree: Any, *, what: str) -> list[Any]:
    """For each leaf of `tree` the leaf of that name in `given`, which may have others too.

    So what is said of all parameters serves where a route leaves a transformation some of them.
    what: the argument that `given` is. Raises ValueError for a leaf that `given` has not.
    """
    known = dict(zip(names(given), jax.tree.leaves(given), strict=True))
    missing = [wanted for wanted in names(tree) if wanted not in known]
    if missing:
        raise ValueError(
            f"{what} must name every parameter; got none for {few(missing)}; the nearest of "
            f"{len(known)} names: {near(missing[0], known)}"
        )
    return [known[wanted] for wanted in names(tree)]


def near(text: str, known: Iterable[str]) -> str:
    """The known names or patterns most like `text`, for the end of an error message."""
    found = difflib.get_close_matches(text, list(known), n=3, cutoff=0.0)
    return ", ".join(map(repr, found))


def few(found: Iterable[str]) -> str:
    """The first of many names, and how many more there are."""
    found = list(found)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(repr, found[:_SHOWN])) + more
