# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Replacement of modules by path."""

from collections.abc import Callable
from typing import Any, TypeVar

from flax import nnx

from dovetail_models._patterns import Patterns
from dovetail_models.adapters.paths import select
from dovetail_models.describing.abbreviation import dotted

Model = TypeVar("Model", bound=nnx.Module)


def replace(model: Model, where: Patterns, fn: Callable[[str, nnx.Module], nnx.Module]) -> Model:
    """Returns a model in which each matched module m at path p is `fn(p, m)`.

    Inner matches are replaced before outer ones. A Variable held twice stays one. Arrays are shared
    with the old model, so donate only one of the two.

    Args:
        model: The model. It stays as it is.
        where: Patterns of module paths.
        fn: Receives a path and a module of the new model. It may alter the module and return it.

    Raises:
        ValueError: A pattern matches nothing.
        TypeError: `fn` returns no module.

    Example:

        >>> from flax import nnx
        >>> from dovetail_models import abstract, llama, replace
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> model = replace(model, "layers.*.mlp", lambda path, mlp: nnx.Sequential(mlp))
        >>> type(model.layers[0].mlp).__name__
        'Sequential'
    """
    matched = select(model, where)

    def visit(path: tuple[Any, ...], node: Any) -> Any:
        name = dotted(path)
        if not isinstance(node, nnx.Module) or name not in matched:
            return node
        new = fn(name, node)
        if not isinstance(new, nnx.Module):
            raise TypeError(
                f"fn must return a flax.nnx.Module, got {type(new).__name__} for path={name!r}. "
                "Return the module itself where nothing changes."
            )
        return new

    return nnx.recursive_map(visit, nnx.clone(model))
