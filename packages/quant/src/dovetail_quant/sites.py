# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where a module multiplies by a weight, and why some of these places are left alone."""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx

from dovetail_quant._patterns import Patterns, name_of, select
from dovetail_quant.kernel import Axes, Kernel, split_equation

Kind = Literal["linear", "general", "einsum", "experts", "embed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One product with a weight. left_alone: why it cannot be quantized; None if it can.

    path: the module's, as "layers.3.attn.q". kind: how its module multiplies. parameter: its name
    in the module. axes: of it.
    """

    path: str
    kind: Kind | None
    axes: Axes
    dtype: str
    parameter: str = "kernel"
    left_alone: str | None = None

    @property
    def bytes(self) -> int:
        """Of the parameter as it is now, if it is float."""
        return math.prod(self.axes.shape) * jnp.dtype(self.dtype).itemsize


def sites(model: nnx.Module, *, where: Patterns | None = None) -> dict[str, Site]:
    """Every module of `model` with a parameter of two axes or more, by path, in its order.

    where: patterns of the sites that are wanted, as those of `plan`. Raises ValueError for one that
    matches none.

    A module takes part as an `nnx.Linear`, `nnx.LinearGeneral` or `nnx.Einsum`, or if it holds
    `kernel` [E, K, N] and the product `ragged_dot`, as layers of experts do; as an `nnx.Embed`, or
    if it holds `embedding` [N, K], how rows are taken, `lookup`, and the product `dot_general`.

        for site in sites(model).values():
            print(site.path, site.axes.shape, site.left_alone or "")
    """
    found = {}
    for path, module in nnx.iter_modules(model):
        name = name_of(path)
        one = _site(name, module)
        if one is not None:
            found[name] = one
    return found if where is None else {p: found[p] for p in select(where, found, what="site")}


def _site(path: str, module: Any) -> Site | None:
    kernel = getattr(module, "kernel", None)
    if not isinstance(kernel, nnx.Variable):
        return _other(path, module)
    value = kernel.get_value()  # not [...], which an abstract one has not
    shape, dtype = tuple(value.shape), str(value.dtype)
    if isinstance(value, Kernel):
        return Site(
            path=path, kind=None, axes=value.axes, dtype=dtype, left_alone="is quantized already"
        )
    kind, axes, why = _kind(module, shape)
    return Site(path=path, kind=kind, axes=axes, dtype=dtype, left_alone=why)


def _kind(module: Any, shape: tuple[int, ...]) -> tuple[Kind | None, Axes, str | None]:
    whole = Axes(shape=shape, inputs=tuple(range(len(shape) - 1)))
    if isinstance(module, nnx.Linear):
        return "linear", Axes(shape=shape, inputs=(0,)), None
    if isinstance(module, nnx.LinearGeneral):
        if module.dot_general_cls is not None:
            return None, whole, "makes its product by dot_general_cls"
        if module.batch_axis:
            return None, whole, "has a matrix for every element of a batch axis"
        inputs = tuple(range(len(module.in_features)))
        return "general", Axes(shape=shape, inputs=inputs), None
    if isinstance(module, nnx.Einsum):
        return _einsum(module, shape, whole)
    if len(shape) == 3 and callable(getattr(module, "ragged_dot", None)):
        return "experts", Axes(shape=shape, batch=(0,), inputs=(1,)), None
    return None, whole, f"a {type(module).__name__} has its product in its own code"


def _einsum(
    module: Any, shape: tuple[int, ...], whole: Axes
) -> tuple[Kind | None, Axes, str | None]:
    left, right, out = split_equation(module.einsum_str)
    letters = {*left, *right, *out}
    alone = set(right) - set(left) - set(out)
    batch = set(right) & set(left) & set(out)
    summed = set(left) - set(right) - set(out)
    if "." in letters or alone or batch or summed or len(set(left)) < len(left):
        return None, whole, f"its equation {module.einsum_str} is no product of matrices"
    inputs = tuple(axis for axis, letter in enumerate(right) if letter not in out)
    return "einsum", Axes(shape=shape, inputs=inputs), None


def _other(path: str, module: Any) -> Site | None:
    """An embedding, or a module that holds a large parameter under another name."""
    for name, variable in vars(module).items():
        if not isinstance(variable, nnx.Param) or len(getattr(variable, "shape", ())) < 2:
            continue
        shape, dtype = tuple(variable.shape), str(variable.dtype)
        axes = Axes(shape=shape, inputs=(len(shape) - 1,))
        by_attributes = callable(getattr(module, "lookup", None))
        if isinstance(variable.get_value(), Kernel):
            why = "is quantized already"
        elif name == "embedding" and (isinstance(module, nnx.Embed) or by_attributes):
            why = None
        else:
            why = f"a {type(module).__name__} keeps its {name} to itself"
        return Site(
            path=path,
            kind=None if why else "embed",
            axes=axes,
            dtype=dtype,
            parameter=name,
            left_alone=why,
        )
    return None
