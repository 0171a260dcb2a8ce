# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which transformation moves which parameters, by the patterns of their names.

`optax.partition` does the work. What it leaves to the caller is here: labels from names, and an
error where a parameter would be moved by no rule, or a rule moves none, which is how a renamed
layer goes untrained.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import optax

from dovetail_optim._patterns import Pattern, few, matches, names_of, no_match

Rule = tuple[str, optax.GradientTransformation]


def route(rules: Sequence[Rule]) -> optax.GradientTransformationExtraArgs:
    """Moves each parameter by the first rule, (pattern, transformation), that its name matches.

    Patterns are globs over names, `layers.*.attn.{q,k}.kernel`: `*` within a segment, `**` for any
    number of segments; `("**", tx)` is for the rest. Extra arguments of `update` reach every
    transformation that takes them. The state is `optax.partition`'s, by the number of the rule.

    Raises ValueError for a pattern that is not one; at `init`, and again while `update` is traced,
    for a parameter that no rule matches and for a rule that is the first for none, with the nearest
    names.

        tx = route([("embed.**", optax.sgd(1e-1)), ("**", optax.adamw(1e-3))])
        state = tx.init(params)
    """
    rules = tuple(rules)
    for rule in rules:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str)):
            raise TypeError(
                "a rule is a pattern and a transformation, as in ('**.bias', optax.sgd(0.1)); "
                f"got rule={rule!r}"
            )
    patterns = [Pattern(pattern).text for pattern, _ in rules]
    transforms: dict[Hashable, optax.GradientTransformation]
    transforms = {str(i): tx for i, (_, tx) in enumerate(rules)}

    def labels(tree: Any) -> Any:
        chosen = [str(i) for i in assign(patterns, names_of(tree))]
        return jax.tree.unflatten(jax.tree.structure(tree), chosen)

    return optax.partition(transforms, labels)


def assign(patterns: Sequence[str], names: Sequence[str]) -> list[int]:
    """For each name the index of the first pattern that it matches; raises as `route` says."""
    chosen = [
        next((i for i, pattern in enumerate(patterns) if matches(pattern, name)), None)
        for name in names
    ]
    lost = [name for name, i in zip(names, chosen, strict=True) if i is None]
    if lost:
        raise ValueError(
            f"every parameter must match a rule; got {few(lost)}, which none of "
            f"{list(patterns)} matches; correct a pattern or end with ('**', tx) for the rest"
        )
    for i, pattern in enumerate(patterns):
        if names and i not in chosen:
            _unused(pattern, patterns, names)
    return [i for i in chosen if i is not None]


def _unused(pattern: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raises for a rule that moves nothing."""
    matched = [name for name in names if matches(pattern, name)]
    if matched:
        earlier = [p for p in patterns if any(matches(p, name) for name in matched)]
        raise ValueError(
            f"every rule must be the first for some parameter; all that {pattern!r} matches goes "
            f"to an earlier rule of {earlier}; put {pattern!r} before it or drop it"
        )
    raise ValueError(
        f"every rule must match a parameter; got pattern={pattern!r}, {no_match(pattern, names)}"
    )
