# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of parameters, their rules and their state, without allocating anything."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import optax

from dovetail_optim import _elsewhere
from dovetail_optim._explained import Explained
from dovetail_optim._patterns import name_of, names_of
from dovetail_optim.rates.rates import UNKNOWN, rates
from dovetail_optim.route import Rule, assign, route

_HIDDEN = "unknown: hidden in a closure; pass a label, as in (pattern, tx, 'Adam, 1e-3')"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One parameter of an explanation.

    Attributes:
        path: Its name.
        shape: Its shape.
        dtype: Its dtype.
        pattern: Pattern of its rule.
        label: Label of its rule; "" without one.
        learning_rate: Learning rate of its rule: a number, the first, largest and last value of a
            `Schedule`, the name of another schedule, or "unknown".
        weight_decay: Weight decay, likewise; "-" if there is none.
        state: Its arrays of state, each as name, dtype and shape.
        state_bytes: Bytes of all of them.
        sharding: Sharding of the parameter, if it has one.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    pattern: str
    label: str
    learning_rate: str
    weight_decay: str
    state: tuple[str, ...]
    state_bytes: int
    sharding: str


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Explained):
    """The result of `explain`. Print it to read it as a table.

    Attributes:
        rows: A row for each parameter.
        parameter_bytes: Bytes of all parameters.
        other_bytes: Bytes of state that belongs to no parameter (counters, keys).
    """

    rows: tuple[Row, ...]
    parameter_bytes: int
    other_bytes: int

    @property
    def state_bytes(self) -> int:
        """Bytes of the whole state, over all devices if nothing is replicated."""
        return self.other_bytes + sum(row.state_bytes for row in self.rows)

    def _summary(self) -> str:
        return f"{len(self.rows)} parameters, {self._total()}"

    def __str__(self) -> str:
        head = ("parameter", "shape", "dtype", "rule", "learning rate", "weight decay")
        head += ("state", "bytes", "sharding")
        table: list[tuple[str, ...]] = [head]
        for row in self.rows:
            shape, state = "x".join(map(str, row.shape)), ", ".join(row.state)
            rule = f"{row.pattern} ({row.label})" if row.label else row.pattern
            cells = (row.path, shape, row.dtype, rule, row.learning_rate, row.weight_decay)
            table.append((*cells, state, f"{row.state_bytes:,}", row.sharding))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
        if any(row.learning_rate == UNKNOWN and not row.label for row in self.rows):
            lines.append(_HIDDEN)
        return "\n".join([*lines, self._total()])

    def _total(self) -> str:
        return f"{self.parameter_bytes:,} bytes of parameters, {self.state_bytes:,} of state"


@_elsewhere.call
def explain(rules: optax.GradientTransformation | Sequence[Rule], params: Any) -> Explanation:
    """Shows what `route(rules)` would do with `params`. Allocates nothing.

    An array of the state belongs to the parameter whose path ends its own path. Learning rates and
    decays are read off the closures of the transformations, see `rates`. Those of a transformation
    that names them otherwise are unknown: put a label into its rule, (pattern, tx, "Adam 1e-3"),
    which stands beside the pattern.

    Args:
        rules: Rules of `route`, some with a label; or one transformation for all parameters.
        params: Arrays or `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: As `route` and the transformations.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> rules = [("**.bias", optax.sgd(0.1)), ("**", optax.adamw(1e-3))]
        >>> explanation = explain(rules, {"a": {"bias": jnp.ones(4), "kernel": jnp.ones((3, 4))}})
        >>> explanation.state_bytes
        100
    """
    if isinstance(rules, optax.GradientTransformation):
        rules = [("**", rules)]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    rule_ids = assign([rule[0] for rule in rules], names_of(params))
    rates_of_rules = [rates(rule[1]) for rule in rules]
    state = jax.tree_util.tree_leaves_with_path(jax.eval_shape(route(rules).init, params))
    owned: list[list[tuple[str, Any]]] = [[] for _ in leaves]
    other_bytes = 0
    for path, leaf in state:
        i = _owner(path, [p for p, _ in leaves])
        if i is None:
            other_bytes += _bytes(leaf)
        else:
            owned[i].append((_field(path, leaves[i][0]), leaf))
    rows = tuple(
        Row(
            path=name_of(path),
            shape=tuple(x.shape),
            dtype=str(x.dtype),
            pattern=rules[i][0],
            label="".join(rules[i][2:]),
            learning_rate=rates_of_rules[i][0],
            weight_decay=rates_of_rules[i][1],
            state=tuple(f"{name} {s.dtype}[{','.join(map(str, s.shape))}]" for name, s in mine),
            state_bytes=sum(_bytes(s) for _, s in mine),
            sharding=str(getattr(getattr(x, "sharding", None), "spec", "")),
        )
        for (path, x), i, mine in zip(leaves, rule_ids, owned, strict=True)
    )
    parameter_bytes = sum(_bytes(x) for _, x in leaves)
    return Explanation(rows=rows, parameter_bytes=parameter_bytes, other_bytes=other_bytes)


def _owner(path: tuple[Any, ...], candidates: Sequence[tuple[Any, ...]]) -> int | None:
    """Returns the parameter with the longest path that ends `path`, up to one key of a pair of
    arrays.
    """
    best = None
    for i, candidate in enumerate(candidates):
        for end in (path, path[:-1]):
            longer = best is None or len(candidate) > len(candidates[best])
            if (
                longer
                and len(candidate) <= len(end)
                and end[len(end) - len(candidate) :] == candidate
            ):
                best = i
    return best


def _field(path: tuple[Any, ...], owner: tuple[Any, ...]) -> str:
    """Returns the name of a field of the state: the last attribute before the parameter's path."""
    end = path if path[len(path) - len(owner) :] == owner else path[:-1]
    fields = [k.name for k in end[: len(end) - len(owner)] if hasattr(k, "name")]
    tail = [k.name for k in path[len(end) :] if hasattr(k, "name")]
    return ".".join(fields[-1:] + tail)


def _bytes(x: Any) -> int:
    return math.prod(x.shape) * x.dtype.itemsize
