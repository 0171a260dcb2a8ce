# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of a model's parameters, with totals by module, dtype and sharding.

Equal layers share one row, `layers.{0..31}.attn.q.kernel`. A model without arrays (`abstract`) can
be described too, also on a mesh without devices. This gives the memory per device of a model before
it is built.
"""

import dataclasses
import html
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail_models import _elsewhere
from dovetail_models.describing.abbreviation import abbreviate, aligned, dotted
from dovetail_models.placing.shard import WEIGHTS, Rules, shardings

_TITLES = ("path", "type", "shape", "dtype", "sharding", "parameters", "bytes", "per device")
_NUMBERS = 3  # numeric columns, at the right
_SHOWN = 17  # rows; with title, header and the last line 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One or several equal parameters.

    Attributes:
        path: Abbreviation of their paths.
        kind: Type of the Variables: Param, LoRAParam, Buffer.
        shape: Shape of each.
        dtype: dtype of each.
        spec: Sharding of each on the mesh. None: not on a mesh.
        count: Number of parameters.
        parameters: Elements of all of them.
        bytes: Bytes of all of them.
        device_bytes: Bytes on one device.
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
        """Submodule of the parameter: `embed`, or `layers.*.attn` inside a list."""
        *names, last = re.sub(r"\{[^}]*\}|(?<=\.)\d+(?=\.)", "*", self.path).split(".")
        return ".".join(names[: names.index("*") + 2] if "*" in names else names[:1]) or last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """Sums over the rows of one group.

    Attributes:
        name: Name of the group.
        parameters: Elements.
        bytes: Bytes.
        device_bytes: Bytes on one device.
    """

    name: str
    parameters: int
    bytes: int
    device_bytes: int


@dataclasses.dataclass(frozen=True)
class Description:
    """The rows of a model, in the order of its tree. `str` is a table with totals.

    Attributes:
        rows: One row per parameter, or per group of equal ones.

    Example:

        >>> from dovetail_models import abstract, describe, llama
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        >>> [(total.name, total.parameters) for total in describe(model).by_dtype()]
        [('float32', 7248)]
    """

    rows: tuple[Row, ...]

    @property
    def total(self) -> Total:
        """Sums over all rows."""
        return _total("total", self.rows)

    def by_module(self) -> tuple[Total, ...]:
        """Returns the sums over each submodule."""
        return self._by(lambda row: row.module)

    def by_dtype(self) -> tuple[Total, ...]:
        """Returns the sums over each dtype."""
        return self._by(lambda row: row.dtype)

    def by_sharding(self) -> tuple[Total, ...]:
        """Returns the sums over each sharding."""
        return self._by(lambda row: _spec(row.spec))

    def _by(self, key: Callable[[Row], str]) -> tuple[Total, ...]:
        names = dict.fromkeys(map(key, self.rows))
        return tuple(_total(name, [r for r in self.rows if key(r) == name]) for name in names)

    def __repr__(self) -> str:
        total = self.total
        sizes = f"{total.parameters:,} parameters, {_size(total.bytes)}"
        return f"Description({len(self.rows)} rows, {sizes}; print it)"

    def _repr_html_(self) -> str:
        # A page cuts a wide <pre>, or folds its lines. The frame of this table scrolls.
        rows = "".join(map(_html_row, self._lines()))
        style = 'style="white-space: nowrap; text-align: left"'
        return f'<div style="overflow-x: auto"><table {style}>{rows}</table></div>'

    def __str__(self) -> str:
        return aligned(self._lines(), numbers=_NUMBERS)

    def _lines(self) -> list[tuple[str, ...]]:
        lines = [_TITLES, *map(_row, self.rows)]
        groups = {"module": self.by_module(), "dtype": self.by_dtype()}
        if any(row.spec is not None for row in self.rows):
            groups["sharding"] = self.by_sharding()
        for name, totals in groups.items():
            lines += [(), (f"by {name}",), *map(_line, totals)]
        return [*lines, (), _line(self.total)]

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """Renders the totals, with the table folded below, for Treescope."""
        # A dependency of Flax, needed only for rendering.
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


def summary(model: nnx.Module) -> str:
    """Returns the repr of a model: a title and the first rows of `describe`, at most 20 lines."""
    rows = describe(model).rows
    total = _total("total", rows)
    title = f"{type(model).__name__}: {total.parameters:,} parameters, {_size(total.bytes)}"
    config = getattr(model, "config", None)
    title = title.replace(":", f"({config.family}):", 1) if config is not None else title
    lines = [title, aligned([_TITLES, *map(_row, rows[:_SHOWN])], numbers=_NUMBERS)]
    left_out = len(rows) - _SHOWN
    return "\n".join(lines + ([f"... {left_out} more: describe(model)"] if left_out > 0 else []))


@_elsewhere.call
def describe(
    model: nnx.Module,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules | None = None,
    fold: bool = True,
    only: nnx.filterlib.Filter = WEIGHTS,
) -> Description:
    """Describes the parameters of any module, with arrays or without.

    Args:
        model: The module.
        mesh: Mesh to plan for; may be abstract. Default: the present placement.
        rules: Sharding rules, used with `mesh`. None: `RULES`.
        fold: Merge the rows of equal layers.
        only: Filter of the Variables.

    Raises:
        ValueError: The mesh does not divide a parameter, or, with `mesh`, a parameter has no
            logical names (as in modules of other libraries).

    Example:

        >>> from jax.sharding import AbstractMesh
        >>> from dovetail_models import abstract, describe, llama
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        >>> description = describe(model, mesh=AbstractMesh((2,), ("fsdp",)))
        >>> description.total.bytes, description.total.device_bytes
        (28992, 14656)
    """
    rows = []
    places = None if mesh is None else _places(model, mesh, rules, only)
    for path, variable in nnx.to_flat_state(nnx.state(model, only)):
        # A quantized parameter is a tree of arrays.
        for inner, leaf in jax.tree_util.tree_leaves_with_path(variable.get_value()):
            name = dotted(path) + jax.tree_util.keystr(inner)
            # A tracer has no sharding of its own.
            place = getattr(leaf, "sharding", None) if places is None else places[path]
            rows.append(_one(name, type(variable).__name__, leaf, place))
    return Description(tuple(_folded(rows) if fold else rows))


def _places(
    model: nnx.Module, mesh: Any, rules: Rules | None, only: Any
) -> dict[Any, NamedSharding]:
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
    """Merges rows that differ only in an index."""
    each = {row.path: row for row in rows}
    alike = abbreviate((path, (r.kind, r.shape, r.dtype, r.spec)) for path, r in each.items())
    merged = []
    for path, names in alike.items():
        group = [each[name] for name in names]
        sums = _sums(group)
        merged.append(dataclasses.replace(group[0], path=path, count=len(group), **sums))
    return merged


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
    """Returns `(fsdp, data+tensor, -)`: the mesh axes of each dimension."""
    if spec is None:
        return "-"
    axes = ("+".join((entry,) if isinstance(entry, str) else entry or ("-",)) for entry in spec)
    return f"({', '.join(axes)})"


def _size(count: int) -> str:
    """Formats bytes with three digits in the largest decimal unit that fits."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"


def _html_row(line: tuple[str, ...]) -> str:
    """Returns a row with numbers at the right, or a title over all columns."""
    tag, span = ("td", 1) if len(line) == len(_TITLES) else ("th", len(_TITLES))
    cells = line or ("",)
    sides = ["left"] * (len(cells) - _NUMBERS) + ["right"] * _NUMBERS if span == 1 else ["left"]
    shown = (
        f'<{tag} colspan="{span}" style="text-align: {side}">{html.escape(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"
