# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a checkpoint into another layout: other names, stacked layers, another mesh.

Source leaves are read and proven a group at a time. Each is cut into its pieces on the device, and
a piece is written into its target in place (a donated `dynamic_update_slice`), so that memory peaks
at the result plus one group. A target of one piece is that piece.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import agree, mapping, pieces, placing, target
from dovetail_checkpoint.digest import hex_digests
from dovetail_checkpoint.names import leaf_names, match_names
from dovetail_checkpoint.opening import open_source
from dovetail_checkpoint.pieces import Built, Piece
from dovetail_checkpoint.report import DamageError, Problem
from dovetail_checkpoint.rules import Rule
from dovetail_checkpoint.source import Source, Value


def load(
    path: str | Path,
    wanted: Any,
    *,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    group_bytes: int = 1 << 30,
) -> Any:
    """The leaves at `path`, turned by `rules` into those of `wanted`, in its structure.

    path: a step of a Store or of Orbax (v0 or v1), a safetensors file, or a directory of them.
    wanted: a pytree as for `Store.restore`: abstract arrays with shardings, arrays, or numbers.
        With rules of keep_init it holds arrays there.
    item: which tree of a step; None if it holds only one.
    group_bytes: the memory to read with. It peaks at the result and this, or twice the largest
        leaf if that is more.

    Every leaf that was written with a digest is proven. Raises ValueError if the leaves do not fit
    (before any is read), and DamageError, naming leaf and file, if one is not what was written.

    >>> load("run/10", wanted, item="model", rules=[stack("layers/#/**", "layers/**")])
    """
    _check_group(group_bytes)
    source = open_source(path, item=item)
    plan = mapping.compiled(source.leaves, rules, target=wanted)
    names, leaves, structure = leaf_names(wanted)
    by_name = dict(zip(match_names(names), leaves, strict=True))
    done = {name: by_name[name] for name in plan.initial}
    done |= _loaded(source, plan, by_name, group_bytes)
    return structure.unflatten([done[name] for name in by_name])


def explain(
    path: str | Path, wanted: Any = None, *, item: str | None = None, rules: Sequence[Rule] = ()
) -> mapping.Explanation:
    """What `load` would do: print it to see where each leaf comes from. Reads no array.

    Without `wanted`: what the rules make of everything that lies at `path`.
    """
    return mapping.compiled(open_source(path, item=item).leaves, rules, target=wanted)


def proven_groups(
    source: Source, places: Mapping[str, jax.sharding.Sharding | None], *, group_bytes: int
) -> Iterator[dict[str, Value]]:
    """The groups of `read_groups`; raises DamageError on all processes if one is damaged."""
    for values, problems in read_groups(source, places, group_bytes=group_bytes):
        if problems:
            raise DamageError(source.path, problems)
        yield values


def read_groups(
    source: Source, places: Mapping[str, jax.sharding.Sharding | None], *, group_bytes: int
) -> Iterator[tuple[dict[str, Value], list[Problem]]]:
    """Reads the leaves in the order of `places`, in at most `group_bytes` but one leaf at least.

    With each group come its problems, the same on all processes: leaves that are not what was
    written, and the files that are to blame. No values come if one process could not read.
    """
    # While a group is read, the bytes of its files lie beside the arrays: half is what fits twice.
    for names in _groups(source, list(places), group_bytes // 2):
        problems: list[Problem] = []
        values: dict[str, Value] = {}
        try:
            values = source.read({name: places[name] for name in names})
        except Exception as error:  # many types for a damaged file; told from ours by the files
            found = source.damaged_files(names)
            if not found and jax.process_count() == 1:
                raise
            problems = [Problem(where=names[0], reason=f"cannot be read ({error!r:.300})"), *found]
        problems = agree.problems(problems)  # before the digests, which may be collective
        if problems:
            yield {}, problems
            continue
        problems = _wrong_digests(source, values)
        if problems:
            problems += source.damaged_files([problem.where for problem in problems])
        yield values, agree.problems(problems)


def _wrong_digests(source: Source, values: Mapping[str, Value]) -> list[Problem]:
    checked = [name for name in values if source.leaves[name].digest is not None]
    found = hex_digests([values[name] for name in checked])
    return [
        Problem(where=name, reason=f"its digest is {have}, saved was {source.leaves[name].digest}")
        for name, have in zip(checked, found, strict=True)
        if have != source.leaves[name].digest
    ]


def _groups(source: Source, names: Sequence[str], group_bytes: int) -> Iterator[list[str]]:
    group, size = [], 0
    for name in names:
        needed = mapping.leaf_bytes(source.leaves[name])
        if group and size + needed > group_bytes:
            yield group
            group, size = [], 0
        group.append(name)
        size += needed
    if group:
        yield group


def _loaded(
    source: Source, plan: mapping.Explanation, wanted: Mapping[str, Any], group_bytes: int
) -> dict[str, Any]:
    """The wanted leaves by name, but for those that keep their initial values."""
    done = {
        name: target.empty(wanted[name]) for name, built in plan.built.items() if not built.pieces
    }
    uses = plan.uses()
    places = {name: _place(source, plan, wanted, uses[name]) for name in uses}
    filling: dict[str, Any] = {}
    for values in proven_groups(source, places, group_bytes=group_bytes):
        spent = []
        for source_name, value in values.items():
            for name, piece in uses[source_name]:
                if plan.is_unchanged(name):
                    done[name] = target.finish(value, wanted[name])
                    continue
                spent.append(value)
                if len(plan.built[name].pieces) == 1:
                    done[name] = _finished(_cut(value, piece, wanted[name]), wanted[name])
                else:
                    if name not in filling:
                        filling[name] = _empty(plan.built[name], wanted[name])
                    filling[name] = _written(filling[name], value, piece)
        # Enqueued work holds the group that it reads: it ends, and the group goes, before the next.
        jax.block_until_ready((list(done.values()), list(filling.values())))
        for value in spent:
            if isinstance(value, jax.Array):
                value.delete()
        values.clear()
    return done | {name: _finished(value, wanted[name]) for name, value in filling.items()}


def _place(
    source: Source,
    plan: mapping.Explanation,
    wanted: Mapping[str, Any],
    uses: Sequence[tuple[str, Piece]],
) -> jax.sharding.Sharding | None:
    """Where a source leaf is read to: as its first target lies, or to the host if any does."""
    if not all(_on_device(wanted[name]) for name, _ in uses):
        return None
    name, piece = uses[0]
    place = target.sharding(wanted[name])
    if plan.is_unchanged(name):
        return place
    return placing.place_of_source(piece, source.leaves[piece.source].shape, place)


def _on_device(wanted: Any) -> bool:
    return isinstance(wanted, jax.Array | jax.ShapeDtypeStruct)


def _cut(value: Value, piece: Piece, wanted: Any) -> Any:
    if isinstance(value, jax.Array):
        return placing.cut(value, piece, target.sharding(wanted))
    return np.array(pieces.block(np.asarray(value), piece))  # a copy: the group goes


def _empty(built: Built, wanted: Any) -> Any:
    if _on_device(wanted):
        return placing.empty(built, target.sharding(wanted))
    return np.empty(built.shape, jnp.dtype(built.dtype))


def _written(into: Any, value: Value, piece: Piece) -> Any:
    """`into` with the piece in its place; it is changed, or donated."""
    if isinstance(into, jax.Array):
        device_or_host = value if isinstance(value, jax.Array) else np.asarray(value)
        return placing.update(into, device_or_host, piece)
    into[piece.place] = pieces.block(np.asarray(value), piece)
    return into


def _finished(value: Any, wanted: Any) -> Any:
    if isinstance(value, jax.Array):
        return jax.device_put(value, target.sharding(wanted))
    return target.finish(value, wanted)


def _check_group(group_bytes: int) -> None:
    if group_bytes < 1:
        raise ValueError(
            f"group_bytes must be at least 1, got group_bytes={group_bytes}; use 1 << 30"
        )
