# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Selection of modules and parameters by patterns over their paths (_patterns.py)."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from flax import nnx

from dovetail_models import _patterns
from dovetail_models._patterns import Pattern, Patterns, each_of, name_of

Filter: TypeAlias = Callable[[tuple[Any, ...], Any], bool]


def select(model: nnx.Module, where: Patterns) -> dict[str, nnx.Module]:
    """Returns {path: module} of the matching modules in `model`, in the order of the tree.

    With several patterns, one match is enough. The modules are those of the model, not copies.

    Raises:
        ValueError: A pattern matches nothing.

    Example:

        >>> from dovetail_models import abstract, llama, select
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        >>> list(select(model, "layers.*.attn.{q,k}"))
        ['layers.0.attn.k', 'layers.0.attn.q', 'layers.1.attn.k', 'layers.1.attn.q']
    """
    modules = {name_of(path): module for path, module in nnx.iter_modules(model) if path}
    selected = _patterns.select(where, modules, rule="a pattern must match a module")
    return {path: modules[path] for path in selected}


def trainable(where: Patterns, *, model: nnx.Module | None = None) -> Filter:
    """Returns a Flax filter for the parameters (`nnx.Param`) with matching paths.

    Pass it as `wrt` of `nnx.Optimizer` or to `nnx.DiffState`. Paths are those of parameters, such
    as `layers.7.attn.q.kernel`; `layers.7.attn.**` takes all parameters of a module. A filter sees
    one path at a time and cannot detect a pattern without a match. Pass `model` to check that now.

    Raises:
        ValueError: A pattern matches no parameter of `model`.

    Example:

        >>> from flax import nnx
        >>> from dovetail_models import abstract, llama, trainable
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> norms = nnx.state(model, trainable("**.scale", model=model))
        >>> [".".join(map(str, path)) for path, _ in nnx.to_flat_state(norms)]
        ['layers.0.attn_norm.scale', 'layers.0.mlp_norm.scale', 'norm.scale']
    """
    if model is not None:
        _patterns.select(where, parameters(model))
    return _Matching(each_of(where))


def parameters(model: nnx.Module) -> dict[str, nnx.Variable]:
    """Returns {path: Variable} of the parameters of `model`, in the order of the tree."""
    return {name_of(path): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


@dataclasses.dataclass(frozen=True)
class _Matching:
    """A hashable filter with a readable repr, for error messages."""

    patterns: tuple[Pattern, ...]

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        if not isinstance(value, nnx.Param):
            return False
        return any(pattern.matches(name_of(path)) for pattern in self.patterns)
