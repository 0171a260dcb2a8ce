# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Comparison of two models: configurations, parameters and their values.

Values are compared leaf by leaf. Those of a directory are read from its files, so models larger
than memory can be compared.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from dovetail_models.build import AnyConfig, AnyModel
from dovetail_models.describing.abbreviation import abbreviate, dotted
from dovetail_models.hf.load import plan
from dovetail_models.hf.match import Source
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.tables.table import listed

# Elements per comparison; float64 copies of a large leaf stay below 1 GB.
_CHUNK = 2**24
_SHOWN = 20  # entries in the text; the others are counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One difference in the configuration, a shape or a dtype.

    Attributes:
        path: Path of the number in the configuration, or of the parameter.
        a: Value in the first model.
        b: Value in the second model.
    """

    path: str
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distance:
    """Distance between two values of one parameter. Infinite if only one of them is a number.

    Attributes:
        path: Path of the parameter.
        largest: max |a - b|.
        relative: `largest` over max |a|.
    """

    path: str
    largest: float
    relative: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Differences between two models. False if there are none; `str` lists them.

    Attributes:
        config: Differences of the configurations.
        only_a: Parameters absent in the second model.
        only_b: Parameters absent in the first model.
        kinds: Differences in shape or dtype.
        values: Distances of the parameters with one shape and other values, largest first.
        same: Number of parameters with equal values.

    Example:

        >>> from dovetail_models import diff, init, llama
        >>> model = init(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> difference = diff(model, model)
        >>> bool(difference), difference.same
        (False, 12)
    """

    config: tuple[Change, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    kinds: tuple[Change, ...]
    values: tuple[Distance, ...]
    same: int

    def __bool__(self) -> bool:
        return bool(self.config or self.only_a or self.only_b or self.kinds or self.values)

    def __repr__(self) -> str:
        counts = {
            "config": self.config,
            "only in a": self.only_a,
            "only in b": self.only_b,
            "shape or dtype": self.kinds,
            "values": self.values,
        }
        cells = [f"{name}: {len(entries)}" for name, entries in counts.items() if entries]
        return f"Difference({', '.join([*cells, f'same: {self.same}'])}{'; print it' * bool(self)})"

    def __str__(self) -> str:
        values = [f"{v.path}: {v.largest:.3g} ({v.relative:.3g})" for v in self.values]
        sections = {
            "config, a | b": list(map(_change, self.config)),
            "only in a": list(self.only_a),
            "only in b": list(self.only_b),
            "shape and dtype, a | b": list(map(_change, self.kinds)),
            "values, max |a - b| (and over max |a|)": values,
        }
        lines = []
        for title, entries in sections.items():
            if entries:
                lines += [title, "  " + listed(entries, limit=_SHOWN, between="\n  ")]
        return "\n".join([*lines, f"{self.same} parameters with equal values"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Leaf:
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def diff(
    a: AnyModel | str | Path, b: AnyModel | str | Path, *, allow: tuple[str, ...] = ()
) -> Difference:
    """Compares two models of this library.

    Numbers are compared in float64, whatever their dtypes. NaN equals NaN.

    Args:
        a: A model or its directory.
        b: A model or its directory.
        allow: As in `load`, for directories.

    Raises:
        ValueError: A directory cannot be loaded; errors are those of `load`.

    Example:

        >>> from dovetail_models import diff, init, llama, resize_vocab
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32, tie=True)
        >>> model = init(config, seed=0)
        >>> print(diff(model, resize_vocab(model, 72)).config)
        (Change(path='vocab_size', a=64, b=72),)
    """
    (config_a, leaves_a), (config_b, leaves_b) = _open(a, allow), _open(b, allow)
    both = [path for path in leaves_a if path in leaves_b]
    pairs = {path: (leaves_a[path], leaves_b[path]) for path in both}
    distances = {p: _distance(p, *pair) for p, pair in pairs.items() if _one_shape(*pair)}
    moved = [d for d in distances.values() if d.largest]
    return Difference(
        config=tuple(_changes(dict(_flat(config_a)), dict(_flat(config_b)))),
        only_a=_only(leaves_a, leaves_b),
        only_b=_only(leaves_b, leaves_a),
        kinds=tuple(
            _changes(
                {p: _kind(x) for p, (x, _) in pairs.items()},
                {p: _kind(y) for p, (_, y) in pairs.items()},
            )
        ),
        values=tuple(sorted(moved, key=lambda d: -d.largest)),
        same=len(distances) - len(moved),
    )


def _change(change: Change) -> str:
    return f"{change.path}: {change.a} | {change.b}"


def _open(
    model: AnyModel | str | Path, allow: tuple[str, ...]
) -> tuple[AnyConfig, dict[str, _Leaf]]:
    """Returns the configuration and {path: leaf} of a model or of a directory."""
    if isinstance(model, str | Path):
        return _directory(Path(model), allow)
    leaves = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, WEIGHTS)):
        value = variable.get_value()
        read = functools.partial(np.asarray, value)
        leaves[dotted(path)] = _Leaf(shape=value.shape, dtype=value.dtype, read=read)
    return model.config, leaves


def _directory(path: Path, allow: tuple[str, ...]) -> tuple[AnyConfig, dict[str, _Leaf]]:
    outline, matched = plan(path, rules=None, allow=allow)
    matched.check_copy()
    structs = {dotted(p): v.get_value() for p, v in nnx.to_flat_state(nnx.state(outline, WEIGHTS))}
    return outline.config, {
        name: _Leaf(
            shape=struct.shape,
            dtype=struct.dtype,
            read=functools.partial(_read, matched.sources[name], struct),
        )
        for name, struct in structs.items()
    }


def _read(source: Source, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    views = [source.op.view(tensor.read()) for tensor in source.tensors]
    whole = np.stack(views) if source.stacked else views[0]
    # Padding rows of a vocabulary lie beyond the shape.
    return whole[tuple(map(slice, struct.shape))]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted path and value of every number in a configuration."""
    if dataclasses.is_dataclass(value):
        yield path or "config", type(value).__name__
        for field in dataclasses.fields(value):
            yield from _flat(getattr(value, field.name), f"{path}.{field.name}".strip("."))
    elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        yield f"{path}.length", len(value)
        for i, item in enumerate(value):
            yield from _flat(item, f"{path}.{i}")
    elif path.endswith("extra"):
        yield from ((f"{path}.{key}", text) for key, text in value)
    else:
        yield path, value


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    """Yields the paths with different or missing values; equal layers are abbreviated."""
    paths = [path for path in {**a, **b} if a.get(path, "-") != b.get(path, "-")]
    said = {path: (a.get(path, "-"), b.get(path, "-")) for path in paths}
    for short, names in abbreviate(said.items()).items():
        yield Change(path=short, a=said[names[0]][0], b=said[names[0]][1])


def _only(a: Mapping[str, _Leaf], b: Mapping[str, _Leaf]) -> tuple[str, ...]:
    return tuple(abbreviate((path, _kind(a[path])) for path in a if path not in b))


def _kind(leaf: _Leaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _one_shape(a: _Leaf, b: _Leaf) -> bool:
    return a.shape == b.shape


def _distance(path: str, a: _Leaf, b: _Leaf) -> Distance:
    x, y = a.read(), b.read()
    rows = max(1, _CHUNK // max(1, math.prod(a.shape[1:])))
    starts = range(0, a.shape[0], rows) if a.shape else [None]
    largest = scale = 0.0
    for start in starts:
        chunk = ... if start is None else slice(start, start + rows)
        p, q = (np.asarray(array[chunk]).astype(np.float64) for array in (x, y))
        same = (p == q) | (np.isnan(p) & np.isnan(q))
        with np.errstate(invalid="ignore"):  # inf - inf, masked as equal
            apart = np.where(same, 0.0, np.abs(p - q))
        largest = max(largest, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
        scale = max(scale, float(np.abs(p[np.isfinite(p)]).max(initial=0.0)))
    relative = largest / scale if scale else math.inf * largest if largest else 0.0
    return Distance(path=path, largest=largest, relative=relative)
