# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a model, chosen by patterns over dotted paths such as `layers.7.attn.q`.

layers.7.attn.q       that one
layers.*.attn.q       `*` stands for one element, or for a part of one: `lora_*`
**.q                  `**` for any number of elements, also for none
layers.*.attn.{q,v}   `{a,b}` for each of the choices
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from flax import nnx

from dovetail_models.hf.table import dotted, near

Pattern: TypeAlias = str | tuple[str, ...]
Filter: TypeAlias = Callable[[tuple[Any, ...], Any], bool]


def select(model: nnx.Module, pattern: Pattern) -> dict[str, nnx.Module]:
    """{path: module} of the modules inside `model` that match, in the order of the tree.

    A tuple of patterns selects what any of them matches. The modules are those of the model, not
    copies. Raises ValueError for a pattern that matches nothing.

    >>> heads = select(model, "layers.*.attn.{q,k,v}")
    """
    found = {dotted(path): module for path, module in nnx.iter_modules(model) if path}
    check(pattern, found, kind="module")
    return {path: module for path, module in found.items() if matches(pattern, path)}


def trainable(pattern: Pattern, *, model: nnx.Module | None = None) -> Filter:
    """A filter of Flax that takes the parameters (`nnx.Param`) whose paths match.

    It serves wherever Flax takes one. The paths are those of parameters, `layers.7.attn.q.kernel`:
    a module's parameters are `layers.7.attn.**`. A filter sees one path at a time and cannot tell
    that it never matched; given `model`, this raises ValueError now for each pattern that matches
    none of its parameters.

    >>> adapters = trainable("**.lora_*", model=model)
    >>> grads = nnx.grad(loss, argnums=nnx.DiffState(0, adapters))(model, batch)
    >>> optimizer = nnx.Optimizer(model, tx, wrt=adapters)
    """
    chosen = _Matching(pattern)
    if model is not None:
        check(pattern, parameters(model), kind="parameter")
    return chosen


def parameters(model: nnx.Module) -> dict[str, nnx.Variable]:
    """{dotted path: Variable} of the parameters of `model`, in the order of the tree."""
    return {dotted(path): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def matches(pattern: Pattern, path: str) -> bool:
    """Whether any of the patterns stands for the path."""
    return any(compiled.fullmatch(f"{path}.") for p in _each(pattern) for compiled in _compile(p))


def check(pattern: Pattern, paths: Iterable[str], *, kind: str) -> None:
    """ValueError unless each of the patterns matches one of the paths of a `kind` of part."""
    paths = list(paths)
    for one in _each(pattern):
        if not any(matches(one, path) for path in paths):
            raise ValueError(
                f"A pattern must match a {kind} of the model, got pattern={one!r}, which matches "
                f"none of {len(paths)}{near(one, paths)}. Write paths as {paths[0]!r}, with * for "
                "an element, ** for any number of them and {a,b} for a choice."
            )


@dataclasses.dataclass(frozen=True)
class _Matching:
    """A filter: hashable, and readable in the messages of who takes it."""

    pattern: Pattern

    def __post_init__(self):
        for one in _each(self.pattern):
            _compile(one)

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        return isinstance(value, nnx.Param) and matches(self.pattern, dotted(path))


def _each(pattern: Pattern) -> Sequence[str]:
    if not pattern:
        raise ValueError(
            f"There must be a pattern, got pattern={pattern!r}. Use '**' for everything."
        )
    return (pattern,) if isinstance(pattern, str) else pattern


@functools.cache
def _compile(pattern: str) -> tuple[re.Pattern[str], ...]:
    """An expression per choice, for paths with a dot after every element."""
    # The split puts what stood in braces at the odd places.
    parts = re.split(r"\{([^{}]*)\}", pattern)
    if any(set(part) & set("{}") for part in parts) or "" in pattern.split("."):
        raise ValueError(
            f"A pattern must be elements between single dots, with closed braces, got "
            f"pattern={pattern!r}. Write it as 'layers.*.attn.{{q,v}}'."
        )
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return tuple(_expression("".join(choice)) for choice in itertools.product(*choices))


def _expression(pattern: str) -> re.Pattern[str]:
    elements = (
        r"(?:[^.]+\.)*" if element == "**" else _element(element) for element in pattern.split(".")
    )
    return re.compile("".join(elements))


def _element(element: str) -> str:
    if element == "*":
        return r"[^.]+\."
    return "[^.]*".join(map(re.escape, element.split("*"))) + r"\."
