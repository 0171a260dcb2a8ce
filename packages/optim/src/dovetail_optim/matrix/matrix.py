# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Axis strings: the axes of an array that form its matrices, such as `"l i h d -> l h, i, d"`.

On the left are the array's axes in order; on the right the same axes in three groups: batch axes
(may be empty), input axes and output axes. The example is a stack of layers with a matrix for every
head.

Axis numbers would do for one array. Names also tell the reader of a configuration whether heads are
separate matrices, or a single one with `"l i h d -> l, i, h d"`.

The checks at the end are of the numbers that optimizers of matrices take. Under
`optax.inject_hyperparams` every number is a traced array of the state. A rate may be traced. A
number that decides shapes or the number of steps may not; name it in `static_args` there.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Shaped

from dovetail_optim._patterns import Pattern, few, names_of
from dovetail_optim.route import assign as assign_rules

_FORM = "axes on the left, then batch, in and out axes, as in 'l i h d -> l h, i, d'"
_PROPOSED = {
    2: "'i o -> , i, o'",
    3: "'l i o -> l, i, o' for a stack of layers or experts, 'i h d -> h, i, d' or "
    "'i h d -> , i, h d' for heads as matrices of their own or as one",
    4: "'l i h d -> l h, i, d' for heads in a stack of layers, 'l e i o -> l e, i, o' for experts",
}

Rule = tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrices:
    """A parsed axis string.

    Attributes:
        text: The string.
        batch: Numbers of the batch axes.
        inner: Numbers of the input axes.
        outer: Numbers of the output axes.
    """

    text: str
    batch: tuple[int, ...]
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        return self.batch + self.inner + self.outer

    def sizes(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Returns (matrices, in, out) for an array of this shape."""
        batch, inner, outer = (
            math.prod(shape[axis] for axis in group)
            for group in (self.batch, self.inner, self.outer)
        )
        return batch, inner, outer

    def fold(self, x: Shaped[Array, "..."]) -> Shaped[Array, "b i o"]:
        """Returns the matrices of `x` as a stack."""
        return x.transpose(self.order).reshape(self.sizes(x.shape))

    def unfold(self, stack: Shaped[Array, "b i o"], shape: Sequence[int]) -> Shaped[Array, "..."]:
        """Inverts `fold`."""
        moved = stack.reshape([shape[axis] for axis in self.order])
        return moved.transpose([self.order.index(axis) for axis in range(len(shape))])

    def check(self, shape: Sequence[int], name: str) -> None:
        """Raises ValueError unless the string fits arrays of this shape."""
        if len(shape) == len(self.order):
            return
        raise ValueError(
            f"matrix={self.text!r} needs arrays of {len(self.order)} axes; got {name!r} of shape "
            f"{tuple(shape)}; {_instead(len(shape))}"
        )


def _instead(rank: int) -> str:
    """Returns the advice of the error message for an array of this rank."""
    if rank < 2:
        return "give it another rule of route, such as ('**', optax.adamw(1e-3))"
    examples = _PROPOSED.get(rank, f"a string of {rank} axes before the arrow")
    return f"write matrix={examples}; or [(pattern, string), ...] if parameters differ"


def parse_rules(matrix: str | Sequence[Rule]) -> Matrices | list[tuple[str, Matrices]]:
    """Parses an axis string for all parameters, or one for each pattern."""
    if isinstance(matrix, str):
        return parse(matrix)
    for rule in matrix:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str)):
            raise TypeError(
                "matrix must be an axis string, or pairs of a pattern and an axis string, as in "
                f"[('**.q.kernel', 'l i h d -> l h, i, d')]; got rule={rule!r}"
            )
    return [(Pattern(pattern).text, parse(text)) for pattern, text in matrix]


def assign(rules: Matrices | Sequence[tuple[str, Matrices]], tree: Any) -> list[Matrices]:
    """Returns the matrices of each leaf of `tree`, by the first rule that matches its name.

    Raises ValueError for a leaf without a rule or of another rank and for a rule without a leaf,
    and TypeError for a leaf of another than a real floating dtype.
    """
    names, leaves = names_of(tree), jax.tree.leaves(tree)
    if isinstance(rules, Matrices):
        selected = [rules] * len(leaves)
    else:
        selected = [rules[i][1] for i in assign_rules([pattern for pattern, _ in rules], names)]
    for name, leaf, matrices in zip(names, leaves, selected, strict=True):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"matrices must be of real floating point; got {name!r} of dtype={leaf.dtype}; "
                "route it to another transformation"
            )
        matrices.check(leaf.shape, name)
    return selected


def parse(text: str) -> Matrices:
    """Parses an axis string. Raises ValueError if it is malformed.

    >>> parse("l i o h -> l h, i, o").sizes((2, 4, 5, 3))  # six matrices of 4 by 5
    (6, 4, 5)
    """
    left, arrow, right = text.partition("->")
    groups = [group.split() for group in right.split(",")]
    axes, used = left.split(), [axis for group in groups for axis in group]
    if not arrow or len(groups) != 3:
        _refuse(text, f"{len(groups) if arrow else 0} groups after the arrow")
    for axis in axes + used:
        if not axis.isidentifier():
            _refuse(text, f"axis={axis!r}, which is no name")
    for side in (axes, used):
        twice = [axis for axis in side if side.count(axis) > 1]
        if twice:
            _refuse(text, f"axis={twice[0]!r} twice on one side")
    if set(axes) != set(used):
        alone = sorted(set(axes) ^ set(used))
        _refuse(text, f"{few(alone)} on one side only")
    if not groups[1] or not groups[2]:
        _refuse(text, f"no {'out' if groups[1] else 'in'} axis")
    batch, inner, outer = (tuple(axes.index(axis) for axis in group) for group in groups)
    return Matrices(text=text, batch=batch, inner=inner, outer=outer)


def _refuse(text: str, got: str) -> None:
    raise ValueError(
        f"a matrix string names every axis once on each side and has an in and an out axis; got "
        f"{got} in matrix={text!r}; write {_FORM}"
    )


def check_share(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is in [0, 1)."""
    if not isinstance(value, Tracer) and not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1); got {name}={value}; write {name}=0.95")


def check_count(name: str, value: Any, *, example: str) -> None:
    """Raises an error unless `value` is an untraced integer of at least 1.

    Args:
        name: Name of the argument.
        value: Its value.
        example: A valid value, for the message.
    """
    check_known(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {name}={value}; write {name}={example}")


def check_known(name: str, value: Any) -> None:
    """Raises TypeError for a traced value."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} must be known when the transformation is made; got a traced value; write "
            f"optax.inject_hyperparams(..., static_args=({name!r},))"
        )
