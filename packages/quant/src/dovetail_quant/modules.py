# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of a model by path, as "layers.3.attn.q"."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx


def module_at(model: nnx.Module, path: str) -> Any:
    """The module of that path."""
    return next(m for p, m in nnx.iter_modules(model) if ".".join(map(str, p)) == path)


def replace(model: nnx.Module, path: str, module: nnx.Module) -> None:
    """Another module at that path, where its parent holds it by attribute, index or key."""
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
    """A module with variables of its own around the same arrays, where a clone would copy them."""
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(lambda x: x, state))


def held(module: nnx.Module, name: str) -> Callable[..., Any]:
    """The product that a module holds under that name, JAX's own where it holds None for it."""
    product = getattr(module, name)
    return jax.lax.dot_general if product is None else product


def _child(parent: Any, key: str) -> Any:
    if hasattr(parent, key):
        return getattr(parent, key)
    return parent[int(key) if key.isdigit() else key]
