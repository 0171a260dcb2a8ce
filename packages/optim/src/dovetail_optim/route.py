# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Transformations by name pattern, and leaves by name.

`optax.partition` does the work. This adds labels from names, and errors for a parameter without a
rule and a rule without a parameter: a renamed layer would otherwise go untrained in silence.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import optax

from dovetail_optim import _elsewhere
from dovetail_optim._patterns import Pattern, few, matches, names_of, near, no_match

# A pattern and a transformation; a label for `explain` may follow.
Rule = tuple[str, optax.GradientTransformation] | tuple[str, optax.GradientTransformation, str]


@_elsewhere.call
def route(rules: Sequence[Rule]) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that moves each parameter by the first rule matching its name.

    Patterns are globs over names, `layers.*.attn.{q,k}.kernel`: `*` within a segment, `**` for any
    number of segments; `("**", tx)` is for the rest. Extra arguments of `update` reach every
    transformation that takes them. The state is `optax.partition`'s, by the number of the rule.

    Args:
        rules: Pairs of a pattern and a transformation. A third entry, a label, names the rule in
            `explain`, and its learning rate in the metrics of dovetail-train.

    Raises:
        TypeError: A rule is not of this form.
        ValueError: A pattern is invalid. At `init` and during tracing of `update`: a parameter
            matches no rule, or a rule is the first for no parameter. The message has the nearest
            names.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> tx = route([("embed.**", optax.sgd(1e-1)), ("**", optax.adamw(1e-3))])
        >>> state = tx.init({"embed": {"w": jnp.ones(3)}, "head": {"w": jnp.ones(3)}})
    """
    rules = tuple(rules)
    for rule in rules:
        texts = (rule[0], *rule[2:]) if isinstance(rule, tuple) and len(rule) in (2, 3) else (None,)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(
                "a rule is a pattern and a transformation, as in ('**.bias', optax.sgd(0.1)), and "
                f"a label may follow; got rule={rule!r}"
            )
    patterns = [Pattern(rule[0]).text for rule in rules]
    transforms: dict[Hashable, optax.GradientTransformation]
    transforms = {str(i): with_extra_args(rule[1]) for i, rule in enumerate(rules)}

    def labels(tree: Any) -> Any:
        numbers = [str(i) for i in assign(patterns, names_of(tree))]
        return jax.tree.unflatten(jax.tree.structure(tree), numbers)

    titles = {str(i): rule[-1] if len(rule) == 3 else rule[0] for i, rule in enumerate(rules)}
    vars(labels)["titles"] = titles  # dovetail-train names learning rates by them
    whole = optax.partition(transforms, labels)

    def init(params: Any) -> Any:
        with jax.transfer_guard("allow"):
            return whole.init(params)

    return optax.GradientTransformationExtraArgs(init, whole.update)


def assign(patterns: Sequence[str], names: Sequence[str]) -> list[int]:
    """Returns the index of the first matching pattern for each name. Raises as `route`."""
    firsts = [
        next((i for i, pattern in enumerate(patterns) if matches(pattern, name)), None)
        for name in names
    ]
    lost = [name for name, i in zip(names, firsts, strict=True) if i is None]
    if lost:
        raise ValueError(
            f"every parameter must match a rule; got {few(lost)}, which none of "
            f"{list(patterns)} matches; correct a pattern or end with ('**', tx) for the rest"
        )
    for i, pattern in enumerate(patterns):
        if names and i not in firsts:
            _unused(pattern, patterns, names)
    return [i for i in firsts if i is not None]


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
            f"{len(known)} names: {near(missing[0], known)}; write {what}=jax.tree.map(lambda p: "
            "p.sharding, params)"
        )
    return [known[wanted] for wanted in names_of(tree)]


def _unused(pattern: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raises ValueError for a rule that moves nothing."""
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


def with_extra_args(tx: Any) -> optax.GradientTransformationExtraArgs:
    """Returns `tx`, made to accept extra arguments. Raises TypeError unless it has `init` and
    `update`.
    """
    if not all(callable(getattr(tx, name, None)) for name in ("init", "update")):
        raise TypeError(
            f"a transformation must have init and update, as those of Optax; got {tx!r}; write "
            f"optax.adamw(1e-3)"
        )
    return optax.with_extra_args_support(tx)
