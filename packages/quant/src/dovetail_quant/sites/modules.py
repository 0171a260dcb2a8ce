# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of a model by path, as "layers.3.attn.q"."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx


def module_at(model: nnx.Module, path: str) -> Any:
    """Returns the module at a path."""
    return next(m for p, m in nnx.iter_modules(model) if ".".join(map(str, p)) == path)


def replace(model: nnx.Module, path: str, module: nnx.Module) -> None:
    """Puts another module at a path, as an attribute, index or key of its parent.

    Args:
        model: The model to change.
        path: Path of the module.
        module: Its replacement.
    """
    *above, last = path.split(".")
    parent: Any = model
    for key in above:
        parent = _child(parent, key)
    if isinstance(parent, nnx.Module) and not isinstance(parent, nnx.List):
        setattr(parent, last, module)
    else:
        key: Any = int(last) if last.isdigit() else last
        parent[key] = module


def copied(model: nnx.Module) -> Any:
    """Returns a module with new variables around the same arrays; a clone would copy them."""
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(lambda x: x, state))


def held(module: nnx.Module, name: str) -> Callable[..., Any]:
    """Returns the product under that attribute of a module; JAX's own for None."""
    product = getattr(module, name)
    return jax.lax.dot_general if product is None else product


def _child(parent: Any, key: str) -> Any:
    if hasattr(parent, key):
        return getattr(parent, key)
    return parent[int(key) if key.isdigit() else key]
