# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which leaves of two checkpoints differ, told by their digests.

A digest is of the bits of a leaf and of nothing else, so it compares leaves across steps, runs and
formats. Only leaves that were written without one, or that rules change by more than their name,
are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail_checkpoint import _compat, mapping
from dovetail_checkpoint.assembly import assembled
from dovetail_checkpoint.digest import hex_digests
from dovetail_checkpoint.mapping import Explanation
from dovetail_checkpoint.opening import is_safetensors, open_source
from dovetail_checkpoint.progress import Progress, counter
from dovetail_checkpoint.rules import Rule
from dovetail_checkpoint.source import Source, SourceLeaf


@dataclass(frozen=True, kw_only=True)
class Change:
    """A leaf that both sides have."""

    left: SourceLeaf
    right: SourceLeaf

    def __str__(self) -> str:
        a, b = self.left, self.right
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.name}: {a.dtype}{list(a.shape)}, {b.dtype}{list(b.shape)}"
        return f"{a.name}: digest {a.digest}, {b.digest}"


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What differs between two trees, by canonical names.

    only_left, only_right: leaves that the other side lacks.
    retyped: leaves of another dtype or shape.
    changed: leaves of other bits.
    equal: how many leaves are the same.
    read_leaves, read_bytes: what was read because there was no digest of it.
    """

    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    retyped: tuple[Change, ...]
    changed: tuple[Change, ...]
    equal: int
    read_leaves: int
    read_bytes: int

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_left or self.only_right or self.retyped or self.changed)

    def __str__(self) -> str:
        lines = [f"- {name}" for name in self.only_left]
        lines += [f"+ {name}" for name in self.only_right]
        lines += [f"~ {change}" for change in (*self.retyped, *self.changed)]
        counts = {
            "only left": len(self.only_left),
            "only right": len(self.only_right),
            "of another dtype or shape": len(self.retyped),
            "of other bits": len(self.changed),
        }
        parts = [f"{self.equal} equal", *(f"{n} {what}" for what, n in counts.items() if n)]
        read = f"{self.read_leaves} leaves, {self.read_bytes} bytes"
        lines.append(f"{', '.join(parts)}; read {read if self.read_leaves else 'no array'}")
        return "\n".join(lines)


def diff(
    a: str | Path,
    b: str | Path,
    *,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    progress: Progress | None = None,
) -> Diff:
    """What differs between the trees at `a` (left) and `b` (right): steps or safetensors.

    item: which tree of a step, on each side that has named ones.
    rules: turn the leaves of `a` into those of `b`.
    progress: called with bytes done and bytes in all, where leaves must be read.

    Raises DamageError if a leaf that is read is not what was written.

    >>> diff("run/10", "run/20", item="model").same
    """
    sources = _open(a, b, item)
    left = mapping.compiled(sources[0].leaves, rules)
    right = mapping.compiled(sources[1].leaves, ())
    ours, theirs = _leaves(left), _leaves(right)
    both = [name for name in ours if name in theirs]
    retyped = [name for name in both if not _alike(ours[name], theirs[name])]
    alike = [name for name in both if _alike(ours[name], theirs[name])]
    unread = [
        (sources[0], _undigested(left, ours, alike)),
        (sources[1], _undigested(right, theirs, alike)),
    ]
    total = sum(plan.read_bytes for _, plan in unread)
    read = counter(progress, total_bytes=total)
    for leaves, (source, plan) in zip((ours, theirs), unread, strict=True):
        for name, value in assembled(source, plan, read=read):
            leaves[name] = replace(leaves[name], digest=hex_digests([value])[0])
    changed = [name for name in alike if ours[name].digest != theirs[name].digest]
    return Diff(
        only_left=tuple(name for name in ours if name not in theirs),
        only_right=tuple(name for name in theirs if name not in ours),
        retyped=tuple(Change(left=ours[name], right=theirs[name]) for name in retyped),
        changed=tuple(Change(left=ours[name], right=theirs[name]) for name in changed),
        equal=len(alike) - len(changed),
        read_leaves=sum(len(plan.sources) for _, plan in unread),
        read_bytes=total,
    )


def _open(a: str | Path, b: str | Path, item: str | None) -> tuple[Source, Source]:
    paths = [Path(a).absolute(), Path(b).absolute()]
    nameless = [is_safetensors(path) or None in _compat.tree_names(path) for path in paths]
    if item is not None and all(nameless):
        raise ValueError(
            f"item must be a tree of a step, got item={item!r} for {paths[0]} and {paths[1]}, "
            "which have no named trees; leave item out"
        )
    left, right = (
        open_source(path, item=None if lone else item)
        for path, lone in zip(paths, nameless, strict=True)
    )
    return left, right


def _leaves(plan: Explanation) -> dict[str, SourceLeaf]:
    """The leaves of the plan, with digests where their bits are those of a source leaf."""
    found = {}
    for name, built in plan.built.items():
        same = plan.is_unchanged(name)
        digest = plan.sources[built.pieces[0].source].digest if same else None
        found[name] = SourceLeaf(name=name, shape=built.shape, dtype=built.dtype, digest=digest)
    return found


def _alike(left: SourceLeaf, right: SourceLeaf) -> bool:
    return (left.dtype, left.shape) == (right.dtype, right.shape)


def _undigested(
    plan: Explanation, leaves: dict[str, SourceLeaf], names: Sequence[str]
) -> Explanation:
    """The part of the plan that has to be read."""
    built = {name: plan.built[name] for name in names if leaves[name].digest is None}
    used = {piece.source for leaf in built.values() for piece in leaf.pieces}
    sources = {name: leaf for name, leaf in plan.sources.items() if name in used}
    return replace(plan, built=built, sources=sources)
