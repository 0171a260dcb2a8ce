# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of a model replaced by others, by path."""

from collections.abc import Callable
from typing import Any, TypeVar

from flax import nnx

from dovetail_models._patterns import Patterns
from dovetail_models.hf.table import dotted
from dovetail_models.surgery.paths import select

Model = TypeVar("Model", bound=nnx.Module)


def replace(model: Model, where: Patterns, fn: Callable[[str, nnx.Module], nnx.Module]) -> Model:
    """A new model in which each matched module m at path p is `fn(p, m)`.

    `fn` gets modules of the new model: it may alter and return them, and the old model stays as it
    is. Of matched modules inside each other the inner comes first. A Variable that the model holds
    twice is still one. The arrays are shared with the old model, so donate only one of the two.

    Raises ValueError for a pattern that matches nothing, TypeError if `fn` returns no module.

    >>> quiet = replace(model, "layers.*.mlp", lambda path, mlp: Scaled(mlp, 0.5))
    """
    chosen = select(model, where)

    def visit(path: tuple[Any, ...], node: Any) -> Any:
        name = dotted(path)
        if not isinstance(node, nnx.Module) or name not in chosen:
            return node
        new = fn(name, node)
        if not isinstance(new, nnx.Module):
            raise TypeError(
                f"fn must return a flax.nnx.Module, got {type(new).__name__} for path={name!r}. "
                "Return the module itself where nothing changes."
            )
        return new

    return nnx.recursive_map(visit, nnx.clone(model))
