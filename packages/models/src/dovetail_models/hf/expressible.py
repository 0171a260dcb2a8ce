# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Refusal of models with a computation of their own.

A family's files hold tensors and a config.json. A router, an attention or a RoPE of the user's own
appears in neither, so the saved model would load with other logits. The model is therefore compared
with the one that its configuration builds: classes, attributes and parameters at every path.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from flax import nnx

from dovetail_models.adapters.adapter import LoraLinear
from dovetail_models.build import AnyModel, outline
from dovetail_models.describing.abbreviation import dotted
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.tables.table import listed

# How a module computes, not its function: operations, precisions, placement, recomputation.
_EXECUTION = frozenset(
    {"dot_general", "dtype", "lookup", "names", "param_dtype", "precision", "promote_dtype"}
    | {"preferred_element_type", "ragged_dot", "remat", "rules", "scan"}
)
# Flax's own attributes; the items of a list are compared one by one.
_FLAX = ("_pytree__", "_length")
_PLAIN = str | int | float | bool | None


def check_expressible(model: AnyModel) -> None:
    """Compares a model with that of its configuration.

    Adapters pass: the key table of the family refuses them by name.

    Raises:
        ValueError: A class of the configuration, a module or an attribute is not the library's, or
            a parameter is missing. The message names the paths.
    """
    replaced = list(_foreign_classes("config", model.config))
    if not replaced:  # else the configuration may not even build a model
        like = outline(model.config)
        replaced = [*_differences("", model, like)] or sorted(_parameters(model, like))
    if replaced:
        raise ValueError(
            f"save writes what the files of a {model.config.family} can express, got "
            f"{listed(replaced, limit=5, between='; ')}. Put back the module of the library, or "
            "save nnx.state(model) with dovetail_checkpoint.Store or Orbax."
        )


def _foreign_classes(path: str, value: Any) -> Iterator[str]:
    """Yields the values of a configuration with a class from outside this library."""
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _foreign_classes(f"{path}[{i}]", item)
    elif dataclasses.is_dataclass(value) and _is_ours(type(value)):
        for field in dataclasses.fields(value):
            yield from _foreign_classes(f"{path}.{field.name}", getattr(value, field.name))
    elif not isinstance(value, _PLAIN):
        yield f"{path}, a {type(value).__qualname__}"


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _differences(path: str, module: nnx.Module, like: nnx.Module) -> Iterator[str]:
    """Yields the topmost paths at which two modules differ in class or attributes."""
    if type(module) is not type(like):
        if not (isinstance(module, LoraLinear) and type(like) is nnx.Linear):
            yield f"{path or 'the model'}, {_named(module)} in place of {_named(like)}"
        return
    theirs, ours = _attributes(module), _attributes(like)
    for name, value in theirs.items():
        if name in ours and value != ours[name]:
            yield f"{_join(path, name)}={value!r:.80} in place of {ours[name]!r:.80}"
        elif name not in ours and hasattr(type(module), name):
            yield f"{_join(path, name)}, in place of a method of {type(module).__qualname__}"
    children, fresh = _children(module), _children(like)
    for name in (*fresh, *(children.keys() - fresh.keys())):
        below = _join(path, name)
        if name not in children:
            yield f"no {below}, which the config has"
        elif name not in fresh:
            yield f"{below}, {_named(children[name])}, which the config lacks"
        else:
            yield from _differences(below, children[name], fresh[name])


def _children(module: nnx.Module) -> dict[Any, nnx.Module]:
    children = nnx.iter_children(module)
    return {name: child for name, child in children if isinstance(child, nnx.Module)}


def _attributes(module: nnx.Module) -> dict[str, Any]:
    """Returns the attributes of the computation, without parameters and inner modules."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith(_FLAX)
        and name not in _EXECUTION
        and not isinstance(value, nnx.Variable | nnx.Module)
    }


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _named(module: nnx.Module) -> str:
    return f"a {type(module).__qualname__}"


def _parameters(model: nnx.Module, like: nnx.Module) -> Iterator[str]:
    """Yields the parameters that only one of the models has."""
    theirs, ours = (dict(nnx.to_flat_state(nnx.state(each, WEIGHTS))) for each in (model, like))
    for path in ours.keys() - theirs.keys():
        yield f"no {dotted(path)}, or one shared with another module"
    for path in theirs.keys() - ours.keys():
        if not isinstance(theirs[path], nnx.LoRAParam):
            yield f"{dotted(path)}, which the config lacks"
