# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The products of a model with weights, and reasons not to quantize some of them.

Embeddings and heads lose most when they are rounded, and every token depends on them. They
therefore have a role, and a rule selects them only by name (`selects`). A head is recognized
without the model's class: it maps the features of an embedding to as many outputs as that has rows,
and it stands beside the embedding or beside a module around it. So `lm_head` beside `embed` is a
head, and `layers.0.attn.q` is none, whatever its shape.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx

from dovetail_quant._patterns import Patterns, each_of, name_of, select
from dovetail_quant.sites.kernel import Axes, Kernel, split_equation

Kind = Literal["linear", "general", "einsum", "experts", "embed"]
Role = Literal["embedding", "head"]

# In the place of the last segment of a path. No model has them.
_NO_NAME, _NO_INDEX = "~", str(10**9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One product with a weight.

    Attributes:
        path: Path of the module, as "layers.3.attn.q".
        kind: How the module multiplies.
        axes: Axes of the parameter.
        dtype: Its dtype.
        parameter: Its name in the module.
        left_alone: Why it cannot be quantized; None if it can.
        role: "embedding" or "head" of a vocabulary, which rules select by name alone; else None.
    """

    path: str
    kind: Kind | None
    axes: Axes
    dtype: str
    parameter: str = "kernel"
    left_alone: str | None = None
    role: Role | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the parameter, if it is float."""
        return math.prod(self.axes.shape) * jnp.dtype(self.dtype).itemsize


def sites(model: nnx.Module, *, where: Patterns | None = None) -> dict[str, Site]:
    """Returns every module of `model` with a parameter of two axes or more, by path, in its order.

    A module can be quantized as an `nnx.Linear`, `nnx.LinearGeneral` or `nnx.Einsum`; as a layer of
    experts, with `kernel` [E, K, N] and the product `ragged_dot`; as an `nnx.Embed`; or as an
    embedding with `embedding` [N, K], a `lookup` of rows and the product `dot_general`.

    Args:
        model: The model.
        where: Name patterns of the wanted sites, as in `plan`.

    Raises:
        ValueError: A pattern matches no site.

    Example:

        >>> model = nnx.Sequential(nnx.Linear(64, 32, rngs=nnx.Rngs(0)), nnx.relu)
        >>> [(site.path, site.axes.shape, site.left_alone) for site in sites(model).values()]
        [('layers.0', (64, 32), None)]
    """
    by_path = {}
    for path, module in nnx.iter_modules(model):
        name = name_of(path)
        site = _site(name, module)
        if site is not None:
            by_path[name] = site
    tables = [site for site in by_path.values() if site.parameter == "embedding"]
    for path, site in by_path.items():
        by_path[path] = dataclasses.replace(site, role=_role(site, tables))
    if where is None:
        return by_path
    return {p: by_path[p] for p in select(where, by_path, rule="a pattern must match a site")}


def selects(patterns: Patterns, site: Site) -> bool:
    """Tests whether patterns select a site: they match its path, or name it if it has a role.

    A pattern names a module if it would not match another name in its place: `embed`, `lm_*` and
    `**.{embed,lm_head}` do, `**` and `layers.#` do not.

    Args:
        patterns: A pattern or several.
        site: The site.
    """
    matching = [pattern for pattern in each_of(patterns) if pattern.matches(site.path)]
    if site.role is None:
        return bool(matching)
    above, dot, last = site.path.rpartition(".")
    renamed = f"{above}{dot}{_NO_INDEX if last.isdigit() else _NO_NAME}"
    return any(not pattern.matches(renamed) for pattern in matching)


def _role(site: Site, tables: Sequence[Site]) -> Role | None:
    """Returns the role of a site in a model with these embeddings."""
    if site.parameter == "embedding":
        return "embedding"
    parent = site.path.rpartition(".")[0]
    around = f"{parent}." if parent else ""
    logits = any(
        table.path.startswith(around) and site.axes.sizes == table.axes.sizes for table in tables
    )
    return "head" if logits and not site.axes.batch else None


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
    """Returns an embedding, or a module with a large parameter under another name."""
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
