# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of a load: the source of each wanted leaf, compiled from metadata and rules.

Each wanted leaf has one origin, and each source leaf is used or dropped; otherwise the error lists
both sides. Print the plan to review it before a byte is read.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint._explained import Explained
from dovetail_checkpoint._patterns import select
from dovetail_checkpoint.layout.pieces import Built, Piece, whole
from dovetail_checkpoint.layout.rules import Rule
from dovetail_checkpoint.layout.source import SourceLeaf
from dovetail_checkpoint.layout.target import leaf_difference
from dovetail_checkpoint.proof.manifest import Leaf
from dovetail_checkpoint.proof.names import leaf_names, match_names

# Enough to recognise what is wrong by; another model differs in hundreds of leaves.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The source of one leaf.

    Attributes:
        name: Name of the leaf; of a dropped one, its name at the rule.
        state: "read", "initial" for a leaf of the target that keeps its value, or "dropped".
        dtype: Dtype of the leaf that is read, else None.
        shape: Its shape.
        source: The source leaves and their regions, in words; "" for a leaf without change.
    """

    name: str
    state: Literal["read", "initial", "dropped"]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    source: str = ""

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name} {_STATES[self.state]}"
        return f"{self.name} {self.dtype}{list(self.shape)}" + f" <- {self.source}" * bool(
            self.source
        )


_STATES = {"initial": "keeps its initial value", "dropped": "is dropped"}


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Explained):
    """The source of each leaf. Print it to read it as a list.

    Attributes:
        built: By name, in the order of the target: the regions to read and their arrangement.
        initial: Leaves of the target that keep their values.
        dropped: Leaves that a rule dropped, by their name at that rule.
        sources: The source leaves to read.
    """

    built: Mapping[str, Built] = field(repr=False)
    initial: tuple[str, ...]
    dropped: tuple[str, ...]
    sources: Mapping[str, SourceLeaf] = field(repr=False)

    @property
    def rows(self) -> tuple[Origin, ...]:
        """The leaves that are read, then the initial, then the dropped ones."""
        return (
            *map(self._origin, self.built),
            *(Origin(name=name, state="initial") for name in self.initial),
            *(Origin(name=name, state="dropped") for name in self.dropped),
        )

    @property
    def read_bytes(self) -> int:
        """The bytes of the leaves to read, each counted once and whole."""
        return sum(map(leaf_bytes, self.sources.values()))

    def is_unchanged(self, name: str) -> bool:
        """Whether the leaf is one source leaf without change."""
        leaf = self.built[name]
        source = self.sources[leaf.pieces[0].source] if leaf.pieces else None
        return source is not None and leaf == whole(source.name, source.shape, source.dtype)

    def uses(self) -> dict[str, list[tuple[str, Piece]]]:
        """Returns the pieces taken from each source leaf, in the order of first need."""
        used: dict[str, list[tuple[str, Piece]]] = {}
        for name, built in self.built.items():
            for piece in built.pieces:
                used.setdefault(piece.source, []).append((name, piece))
        return used

    def _summary(self) -> str:
        dropped = f"{len(self.initial)} keep their initial values, {len(self.dropped)} dropped"
        return f"{len(self.built)} leaves, {dropped}"

    def __str__(self) -> str:
        reads = f"reads {len(self.sources)} leaves, {self.read_bytes} bytes"
        return "\n".join([*map(str, self.rows), reads])

    def _origin(self, name: str) -> Origin:
        built = self.built[name]
        parts = [_piece_text(piece, self.sources[piece.source]) for piece in built.pieces]
        if len(parts) > 3:
            parts = [*parts[:2], f"... {len(parts) - 3} more", parts[-1]]
        source = " + ".join(parts) or "nothing: it has no elements"
        if source == name and self.is_unchanged(name):
            source = ""
        return Origin(name=name, state="read", dtype=built.dtype, shape=built.shape, source=source)


def leaf_bytes(leaf: SourceLeaf) -> int:
    """Returns the bytes of a leaf in memory; a Python number counts as 8."""
    if leaf.dtype.startswith("python "):
        return 8
    # Two words for each key of threefry, four for the others.
    itemsize = {"key<fry>": 8}.get(leaf.dtype, 16)
    if not leaf.dtype.startswith("key<"):
        itemsize = jnp.dtype(leaf.dtype).itemsize
    return math.prod(leaf.shape) * itemsize


def compiled(
    leaves: Mapping[str, SourceLeaf], rules: Sequence[Rule], *, target: Any = None
) -> Explanation:
    """Compiles the plan for `target`; without a target, for all leaves after the rules.

    Args:
        leaves: Source leaves by name.
        rules: Applied in order.
        target: A pytree of the wanted leaves.

    Raises:
        ValueError: The two do not fit together; the error lists the leaves.
    """
    now: Mapping[str, Built] = {
        name: whole(name, leaf.shape, leaf.dtype) for name, leaf in leaves.items()
    }
    dropped: list[str] = []
    for rule in rules:
        before, now = now, rule.apply(now)
        if rule.drops:
            dropped += [name for name in before if name not in now]
    wanted = _by_name(target) if target is not None else {}
    initial = [name for name in wanted if _keeps(rules, name)]
    _check_initial(rules, wanted, initial)
    if target is not None:
        asked = {name: leaf for name, leaf in wanted.items() if name not in initial}
        _check(now, asked)
        now = {name: now[name] for name in asked}
    read = {piece.source for built in now.values() for piece in built.pieces}
    return Explanation(
        built=now,
        initial=tuple(initial),
        dropped=tuple(dropped),
        sources={name: leaf for name, leaf in leaves.items() if name in read},
    )


def _by_name(target: Any) -> dict[str, Any]:
    names, leaves, _ = leaf_names(target)
    return dict(zip(match_names(names), leaves, strict=True))


def _keeps(rules: Sequence[Rule], name: str) -> bool:
    return any(r.initial is not None and r.initial.matches(name) for r in rules)


def _check_initial(
    rules: Sequence[Rule], wanted: Mapping[str, Any], initial: Sequence[str]
) -> None:
    for rule in rules:
        if rule.initial:
            select(rule.initial.text, wanted, rule=f"{rule} must match a leaf of the target")
    abstract = [name for name in initial if isinstance(wanted[name], jax.ShapeDtypeStruct)]
    if abstract:
        raise ValueError(
            "leaves that keep their initial value must be arrays in the target, got abstract "
            f"{abstract[:_SHOWN]}; initialise them, for example jax.jit(init)(key)"
        )


def _check(built: Mapping[str, Built], wanted: Mapping[str, Any]) -> None:
    lines = []
    for name, leaf in wanted.items():
        if name not in built:
            near = difflib.get_close_matches(name, built.keys() - wanted.keys(), n=1, cutoff=0.5)
            hint = f'rename("{near[0]}", "{name}")' if near else f'keep_init("{name}")'
            lines.append(f"{name}: wanted, not saved; perhaps {hint}")
            continue
        have = built[name]
        saved = Leaf(name=name, dtype=have.dtype, shape=have.shape, digest=None)
        lines += [f"{name}: {x}{_hint(have, leaf, name)}" for x in leaf_difference(saved, leaf)]
    lines += [
        f'{name}: saved, not wanted; perhaps drop("{name}")' for name in built if name not in wanted
    ]
    if not lines:
        return
    more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    shown = "\n  ".join(lines[:_SHOWN])
    raise ValueError(
        "after the rules the leaves must be those of the target, got differences:\n  "
        f"{shown}{more}\nadd rules, or build the target from the configuration that was saved"
    )


def _hint(have: Built, wanted: Any, name: str) -> str:
    shape = tuple(np.shape(wanted))
    if shape == have.shape:
        return f'; perhaps cast("{name}", "{wanted.dtype}")' if hasattr(wanted, "dtype") else ""
    if len(shape) == 2 and shape == have.shape[::-1]:
        return f'; perhaps transpose("{name}", (1, 0))'
    return ""


def _piece_text(piece: Piece, source: SourceLeaf) -> str:
    text = piece.source
    if piece.region != tuple((0, n) for n in source.shape):
        text += "[" + ", ".join(f"{start}:{stop}" for start, stop in piece.region) + "]"
    order = [axis for axis in piece.axes if axis is not None]
    if order != sorted(order):
        text += f" transposed {tuple(order)}"
    return text + "".join(f" as {dtype}" for dtype in piece.casts)
