# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a model holds: a row per parameter, and totals by module, dtype and sharding.

Layers that are alike are one row, `layers.{0..31}.attn.q.kernel`. A model without arrays
(`abstract`) is described as well, on a mesh without devices too, so that the size of a model that
nobody has built is known, on each of the devices that it would lie on.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail_models.abbreviation import abbreviate
from dovetail_models.hf.table import dotted
from dovetail_models.shard import RULES, WEIGHTS, Rules, shardings

_TITLES = ("path", "type", "shape", "dtype", "sharding", "parameters", "bytes", "per device")
_NUMBERS = 3  # columns at the right that are numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """`count` equal parameters of `shape`, at the paths that `path` abbreviates.

    `kind` is the type of the variables (Param, LoRAParam, Buffer), `spec` how each lies on the mesh
    (None: not on a mesh). The numbers are of all of them together, in bytes and elements;
    `device_bytes` is what lies on one device.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    spec: PartitionSpec | None
    count: int
    parameters: int
    bytes: int
    device_bytes: int

    @property
    def module(self) -> str:
        """The part of the model that holds it: `embed`, or `layers.*.attn` of one in a list."""
        *names, last = re.sub(r"\{[^}]*\}|(?<=\.)\d+(?=\.)", "*", self.path).split(".")
        return ".".join(names[: names.index("*") + 2] if "*" in names else names[:1]) or last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """The sums over the rows that share `name`."""

    name: str
    parameters: int
    bytes: int
    device_bytes: int


@dataclasses.dataclass(frozen=True)
class Description:
    """The rows of a model, in the order of its tree. `str` is a table with the totals below."""

    rows: tuple[Row, ...]

    @property
    def total(self) -> Total:
        """The sums over everything."""
        return _total("total", self.rows)

    def by_module(self) -> tuple[Total, ...]:
        """The sums over each part of the model."""
        return self._by(lambda row: row.module)

    def by_dtype(self) -> tuple[Total, ...]:
        """The sums over each dtype."""
        return self._by(lambda row: row.dtype)

    def by_sharding(self) -> tuple[Total, ...]:
        """The sums over each way to lie on the mesh."""
        return self._by(lambda row: _spec(row.spec))

    def _by(self, key: Callable[[Row], str]) -> tuple[Total, ...]:
        names = dict.fromkeys(map(key, self.rows))
        return tuple(_total(name, [r for r in self.rows if key(r) == name]) for name in names)

    def __str__(self) -> str:
        lines = [_TITLES, *map(_row, self.rows)]
        groups = {"module": self.by_module(), "dtype": self.by_dtype()}
        if any(row.spec is not None for row in self.rows):
            groups["sharding"] = self.by_sharding()
        for name, totals in groups.items():
            lines += [(), (f"by {name}",), *map(_line, totals)]
        return _table([*lines, (), _line(self.total)])

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """Treescope calls this: the totals, and folded behind them the table."""
        # Flax brings it, and only who renders needs it.
        from treescope import rendering_parts as parts

        total = self.total
        summary = f"Description: {total.parameters:,} parameters, {_size(total.bytes)}, "
        summary += f"{_size(total.device_bytes)} per device"
        return parts.build_foldable_tree_node_from_children(
            prefix=parts.text(f"<{summary}"),
            children=[parts.text(line) for line in str(self).splitlines()],
            suffix=parts.text(">"),
            path=path,
        )


def describe(
    model: nnx.Module,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules = RULES,
    fold: bool = True,
    only: nnx.filterlib.Filter = WEIGHTS,
) -> Description:
    """The parameters of any module, whether it holds arrays or their outlines.

    With `mesh`, which may be abstract, parameters lie as `rules` would place them there; without,
    as they lie. `fold=False` gives each layer its own rows. `only` selects the variables.

    Raises ValueError for a mesh that does not divide a parameter, and with `mesh` for a parameter
    without logical names, as those of other libraries' modules are.

    >>> print(describe(abstract(config), mesh=AbstractMesh((8,), ("fsdp",))))
    """
    rows = []
    places = None if mesh is None else _places(model, mesh, rules, only)
    for path, variable in nnx.to_flat_state(nnx.state(model, only)):
        # A quantized parameter is a tree of arrays.
        for inner, leaf in jax.tree_util.tree_leaves_with_path(variable.get_value()):
            name = dotted(path) + jax.tree_util.keystr(inner)
            place = leaf.sharding if places is None else places[path]
            rows.append(_one(name, type(variable).__name__, leaf, place))
    return Description(tuple(_folded(rows) if fold else rows))


def _places(model: nnx.Module, mesh: Any, rules: Rules, only: Any) -> dict[Any, NamedSharding]:
    nameless = [
        dotted(path)
        for path, variable in nnx.to_flat_state(nnx.state(model, only))
        if not variable.get_metadata().get("out_sharding")
    ]
    if nameless:
        raise ValueError(
            "To be planned on a mesh every parameter must have logical names, got none on "
            f"{nameless}. Leave mesh out, or make them with {{'out_sharding': names}} as metadata."
        )
    planned = nnx.to_flat_state(shardings(model, mesh, rules=rules, only=only))
    return {path: place.get_value() for path, place in planned}


def _one(name: str, kind: str, leaf: Any, place: Any) -> Row:
    shape, item = tuple(leaf.shape), leaf.dtype.itemsize
    held = shape if place is None else place.shard_shape(shape)
    return Row(
        path=name,
        kind=kind,
        shape=shape,
        dtype=str(leaf.dtype),
        spec=place.spec if isinstance(place, NamedSharding) else None,
        count=1,
        parameters=math.prod(shape),
        bytes=math.prod(shape) * item,
        device_bytes=math.prod(held) * item,
    )


def _folded(rows: Iterable[Row]) -> list[Row]:
    """Rows that differ in an index alone, as one."""
    each = {row.path: row for row in rows}
    alike = abbreviate((path, (r.kind, r.shape, r.dtype, r.spec)) for path, r in each.items())
    found = []
    for path, names in alike.items():
        group = [each[name] for name in names]
        sums = _sums(group)
        found.append(dataclasses.replace(group[0], path=path, count=len(group), **sums))
    return found


def _sums(rows: Iterable[Row]) -> dict[str, int]:
    rows = list(rows)
    return {
        "parameters": sum(row.parameters for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "device_bytes": sum(row.device_bytes for row in rows),
    }


def _total(name: str, rows: Iterable[Row]) -> Total:
    return Total(name=name, **_sums(rows))


def _row(row: Row) -> tuple[str, ...]:
    times = f"{row.count} x " if row.count > 1 else ""
    shape = times + "[" + ", ".join(map(str, row.shape)) + "]"
    return (row.path, row.kind, shape, row.dtype, _spec(row.spec), *_numbers(row))


def _line(total: Total) -> tuple[str, ...]:
    return (total.name, "", "", "", "", *_numbers(total))


def _numbers(of: Row | Total) -> tuple[str, ...]:
    return f"{of.parameters:,}", _size(of.bytes), _size(of.device_bytes)


def _spec(spec: PartitionSpec | None) -> str:
    """`(fsdp, data+tensor, -)`: the axes that split each dimension."""
    if spec is None:
        return "-"
    axes = ("+".join((part,) if isinstance(part, str) else part or ("-",)) for part in spec)
    return f"({', '.join(axes)})"


def _size(count: int) -> str:
    """In bytes, or with three digits in the decimal unit below."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"


def _table(lines: list[tuple[str, ...]]) -> str:
    """Columns as wide as need be, numbers at their right edge; a shorter line is a title."""
    full = [line for line in lines if len(line) == len(_TITLES)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    edges = [str.ljust] * (len(_TITLES) - _NUMBERS) + [str.rjust] * _NUMBERS
    text = []
    for line in lines:
        if len(line) == len(_TITLES):
            line = [edge(cell, w) for edge, cell, w in zip(edges, line, widths, strict=True)]
        text.append("  ".join(line))
    return "\n".join(text)
