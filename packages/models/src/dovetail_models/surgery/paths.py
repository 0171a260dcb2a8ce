# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Modules and parameters of a model, chosen by patterns over their paths (_patterns.py)."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from flax import nnx

from dovetail_models import _patterns
from dovetail_models._patterns import Pattern, Patterns, each_of, name_of

Filter: TypeAlias = Callable[[tuple[Any, ...], Any], bool]


def select(model: nnx.Module, where: Patterns) -> dict[str, nnx.Module]:
    """{path: module} of the modules inside `model` that match, in the order of the tree.

    Several patterns select what any of them matches. The modules are those of the model, not
    copies. Raises ValueError for a pattern that matches nothing.

    >>> heads = select(model, "layers.*.attn.{q,k,v}")
    """
    modules = {name_of(path): module for path, module in nnx.iter_modules(model) if path}
    return {path: modules[path] for path in _patterns.select(where, modules, what="module")}


def trainable(where: Patterns, *, model: nnx.Module | None = None) -> Filter:
    """A filter of Flax that takes the parameters (`nnx.Param`) whose paths match.

    It serves wherever Flax takes one. The paths are those of parameters, `layers.7.attn.q.kernel`:
    a module's parameters are `layers.7.attn.**`. A filter sees one path at a time and cannot tell
    that it never matched; given `model`, this raises ValueError now for each pattern that matches
    none of its parameters.

    >>> adapters = trainable("**.lora_*", model=model)
    >>> grads = nnx.grad(loss, argnums=nnx.DiffState(0, adapters))(model, batch)
    >>> optimizer = nnx.Optimizer(model, tx, wrt=adapters)
    """
    if model is not None:
        _patterns.select(where, parameters(model))
    return _Matching(each_of(where))


def parameters(model: nnx.Module) -> dict[str, nnx.Variable]:
    """{path: Variable} of the parameters of `model`, in the order of the tree."""
    return {name_of(path): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


@dataclasses.dataclass(frozen=True)
class _Matching:
    """A filter: hashable, and readable in the messages of who takes it."""

    patterns: tuple[Pattern, ...]

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        if not isinstance(value, nnx.Param):
            return False
        return any(pattern.matches(name_of(path)) for pattern in self.patterns)
