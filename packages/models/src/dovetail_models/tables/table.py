# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of tensor names of a family, used for reading and writing."""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dovetail_models.build import AnyConfig
from dovetail_models.config.decoder import Attention
from dovetail_models.config.layer import Mlp
from dovetail_models.tables.config_json import ConfigJson
from dovetail_models.tables.ops import Identity, Op, Slice, Transpose


@dataclasses.dataclass(frozen=True)
class Row:
    """A pair of a tensor in the files and a leaf of the model.

    `{i}` in both names is a layer. `{e}`, only in `theirs`, makes a stack: entry e of the leaf's
    first axis comes from tensor e. Rows with different operations may share a tensor.

    Attributes:
        theirs: Tensor name, without the family's prefix.
        ours: Dotted path of the leaf.
        op: Operation from tensor to leaf.
    """

    theirs: str
    ours: str
    op: Op


Table = tuple[Row, ...]
SAME, TURN = Identity(), Transpose()
# {path of a leaf: (name of its tensor, op)}
Sources = dict[str, tuple[str, Op]]


def linear(theirs: str, ours: str, *, leaf: str = "kernel", op: Op = TURN) -> Table:
    """Returns the rows of a weight and its bias, such as those of a torch `Linear`.

    A bias is optional.

    Args:
        theirs: Name of the module in the files.
        ours: Path of the module.
        leaf: Our name of the weight.
        op: Operation on the weight.
    """
    weight = Row(f"{theirs}.weight", f"{ours}.{leaf}", op)
    return weight, Row(f"{theirs}.bias", f"{ours}.bias", SAME)


def norm(theirs: str, ours: str) -> Table:
    """Returns the row of an RMS norm."""
    return (Row(f"{theirs}.weight", f"{ours}.scale", SAME),)


def in_layers(
    names: Mapping[str, str],
    *,
    row: Callable[[str, str], Table] = linear,
    theirs: str = "model.layers.{i}.",
) -> Table:
    """Returns the rows of modules in a layer.

    Args:
        names: Their names and ours, within the layer.
        row: Returns the rows of a module: `linear` or `norm`.
        theirs: Tensor prefix of a layer.
    """
    return tuple(x for a, b in names.items() for x in row(theirs + a, f"layers.{{i}}.{b}"))


def experts(router: str, names: dict[str, str], *, stacked: str) -> tuple[Table, Table]:
    """Returns two table layouts of a mixture of experts.

    The first has one torch `Linear` per expert and projection. The second has two tensors for all
    experts: [E, 2 F, D] with gate before up, and [E, D, F].

    Args:
        router: Tensor name of the router, without `.weight`.
        names: File name of each projection, by ours (gate, up, down).
        stacked: Tensor prefix of an expert, with `{e}` for its index.
    """
    mlp = "layers.{i}.mlp."
    both = stacked.replace(".{e}", "")
    gate = Row(f"{router}.weight", f"{mlp}router.kernel", TURN)
    apart = tuple(
        Row(f"{stacked}.{theirs}.weight", f"{mlp}experts.{ours}.kernel", TURN)
        for ours, theirs in names.items()
    )
    fused = (
        Row(f"{both}.gate_up_proj", f"{mlp}experts.gate.kernel", Slice(0, 2, -2, TURN)),
        Row(f"{both}.gate_up_proj", f"{mlp}experts.up.kernel", Slice(1, 2, -2, TURN)),
        Row(f"{both}.down_proj", f"{mlp}experts.down.kernel", TURN),
    )
    return (gate, *apart), (gate, *fused)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Storage format of one family.

    In patterns, `{i}` is a number and `*` is anything.

    Attributes:
        config_json: Reads and writes config.json, as a `ConfigJson`.
        table: Rows for saving and loading.
        layouts: Further tables for loading. Saving uses the first table with a row for every leaf,
            so a layout is written only if `table` lacks one.
        prefix: Prefix of every tensor name except the head's, `tied[0]`. Tables leave it out; files
            may.
        inert: config.json keys without effect in this family alone; `HARMLESS` has those of all.
        tied: Names of a redundant copy of the embedding and of the embedding, which must be equal.
            None: no tied head.
        buffers: Patterns of tensors without a parameter in the model, such as masks. Ignored.
        dropped: Returns patterns of parameters without a module here. They are omitted with a
            warning.
        attention: Class of a decoder's attention in every layer.
        blocks: Classes of a decoder's feed-forward blocks; each layer has one of them.
        rope: The layers of a decoder have RoPE.
        fit: Adapts a configuration to the tensor names of the files, for families with optional
            components not described in config.json.
    """

    config_json: ConfigJson
    table: Table
    layouts: tuple[Table, ...] = ()
    prefix: str = ""
    tied: tuple[str, str] | None
    inert: frozenset[str] = frozenset()
    buffers: tuple[str, ...] = ()
    dropped: Callable[[Any], tuple[str, ...]] = lambda config: ()
    attention: type = Attention
    blocks: tuple[type, ...] = (Mlp,)
    rope: bool = True
    fit: Callable[[Any, Collection[str]], AnyConfig] = lambda config, names: config

    def on_disk(self, name: str) -> str:
        """Returns the name in a file for a name of the tables."""
        is_head = self.tied is not None and name == self.tied[0]
        return name if is_head else self.prefix + name


def candidates(family: Family, leaves: Collection[str]) -> list[Sources]:
    """Returns the sources of the leaves, for each table with rows for all of them.

    The table for saving comes first.

    Raises:
        ValueError: No table has a row for every leaf.
    """
    tables = family.table, *family.layouts
    complete = [named for named, nameless in (_named(t, leaves) for t in tables) if not nameless]
    return complete or [sources(family.table, leaves)]


def sources(table: Table, leaves: Iterable[str]) -> Sources:
    """Returns {path of a leaf: (tensor name, op)}. The name of a stack keeps `{e}`.

    Raises:
        ValueError: A leaf has no row, so it is not a parameter of the family.
    """
    named, nameless = _named(table, leaves)
    if nameless:
        raise ValueError(
            f"Every parameter must be one that the family's files name, got {listed(nameless)}. "
            "Merge adapters (lora.merge), or remove what surgery added, first."
        )
    return named


def _named(table: Table, leaves: Iterable[str]) -> tuple[Sources, list[str]]:
    """Returns the sources of the leaves, and the leaves without a row."""
    named: Sources = {}
    nameless = []
    for leaf in leaves:
        rows = [(row, match) for row in table if (match := _match(row.ours, leaf))]
        assert len(rows) <= 1, (leaf, rows)
        if not rows:
            nameless.append(leaf)
            continue
        row, match = rows[0]
        named[leaf] = (row.theirs.replace("{i}", match.groupdict().get("i", "")), row.op)
    return named, nameless


def listed(names: Iterable[str], *, limit: int = 20, between: str = ", ") -> str:
    """Joins names, at most `limit` of them, with the count of the rest.

    Args:
        names: The names.
        limit: Number of names to show.
        between: Separator.
    """
    names = list(names)
    more = [f"and {len(names) - limit} more"] if len(names) > limit else []
    return between.join([*names[:limit], *more])


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches the tensor name."""
    return any(_match(pattern, name) for pattern in patterns)


def _match(pattern: str, name: str) -> re.Match[str] | None:
    """Matches a whole name with a pattern."""
    return _compiled(pattern).fullmatch(name)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern."""
    return re.compile(re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\*", ".*"))
