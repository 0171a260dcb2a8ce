# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Comparison of two checkpoints by the digests of their leaves.

A digest depends only on the bits of a leaf, so it compares leaves across steps, runs and formats. A
leaf is read only if it has no digest, or if rules change more than its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from dovetail_checkpoint import _compat, _elsewhere
from dovetail_checkpoint.layout import mapping
from dovetail_checkpoint.layout.mapping import Explanation
from dovetail_checkpoint.layout.rules import Rule
from dovetail_checkpoint.layout.source import Source, SourceLeaf
from dovetail_checkpoint.paths.assembly import assembled
from dovetail_checkpoint.paths.opening import is_safetensors, of_paths_that_stay, open_source
from dovetail_checkpoint.paths.orbax_item import OrbaxItem
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.progress import Progress, counter


@dataclass(frozen=True, kw_only=True)
class Change:
    """A leaf that differs.

    Attributes:
        left: The leaf on the left.
        right: The leaf on the right.
    """

    left: SourceLeaf
    right: SourceLeaf

    def __str__(self) -> str:
        a, b = self.left, self.right
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.name}: {a.dtype}{list(a.shape)}, {b.dtype}{list(b.shape)}"
        return f"{a.name}: digest {a.digest}, {b.digest}"


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The differences of two trees, by canonical names.

    Attributes:
        only_left: Leaves without a counterpart on the right.
        only_right: Leaves without a counterpart on the left.
        retyped: Leaves with another dtype or shape.
        changed: Leaves with other bits.
        equal: Number of equal leaves.
        read_leaves: Number of leaves read for lack of a digest.
        read_bytes: Their bytes.
        notes: Sides whose directory is named as another step than its manifest says.
    """

    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    retyped: tuple[Change, ...]
    changed: tuple[Change, ...]
    equal: int
    read_leaves: int
    read_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """True if the trees are equal."""
        return not (self.only_left or self.only_right or self.retyped or self.changed)

    def __repr__(self) -> str:
        return f"Diff({str(self).splitlines()[-1]}{'' if self.same else '; print it'})"

    def __str__(self) -> str:
        lines = [*self.notes, *(f"- {name}" for name in self.only_left)]
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


@_elsewhere.call
@of_paths_that_stay
@jax.transfer_guard("allow")
def diff(
    a: str | Path,
    b: str | Path,
    *,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    progress: Progress | None = None,
) -> Diff:
    """Compares the trees at `a` (left) and `b` (right): steps or safetensors.

    Args:
        a: Left path, as for `load`.
        b: Right path, as for `load`.
        item: Name of the tree, on each side with named trees.
        rules: Turn the leaves of `a` into those of `b`.
        progress: Called with bytes done and total bytes if leaves are read.

    Raises:
        DamageError: A leaf differs from its digest when read.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, diff
        >>> with Store("run") as store:
        ...     store.save(10, model={"w": jnp.ones(3), "b": jnp.zeros(3)})
        ...     store.save(20, model={"w": jnp.ones(3), "b": jnp.ones(3)})
        >>> [change.left.name for change in diff("run/10", "run/20").changed]
        ['b']
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
        notes=tuple(
            f"{source.path}: {source.note}"
            for source in sources
            if isinstance(source, OrbaxItem) and source.note
        ),
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
    """Returns the leaves of the plan. A leaf with the bits of a source leaf has its digest."""
    leaves = {}
    for name, built in plan.built.items():
        same = plan.is_unchanged(name)
        digest = plan.sources[built.pieces[0].source].digest if same else None
        leaves[name] = SourceLeaf(name=name, shape=built.shape, dtype=built.dtype, digest=digest)
    return leaves


def _alike(left: SourceLeaf, right: SourceLeaf) -> bool:
    return (left.dtype, left.shape) == (right.dtype, right.shape)


def _undigested(
    plan: Explanation, leaves: dict[str, SourceLeaf], names: Sequence[str]
) -> Explanation:
    """Returns the leaves of the plan without a digest; they must be read."""
    built = {name: plan.built[name] for name in names if leaves[name].digest is None}
    used = {piece.source for leaf in built.values() for piece in leaf.pieces}
    sources = {name: leaf for name, leaf in plan.sources.items() if name in used}
    return replace(plan, built=built, sources=sources)
