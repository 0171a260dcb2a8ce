# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loading of a checkpoint into another layout: other names, stacked layers, another mesh.

Source leaves are read and proven a group at a time. Each is cut on the device, and its pieces are
written into their targets in place (a donated `dynamic_update_slice`). Memory peaks at the result
plus one group. A target with a single piece is that piece.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import _elsewhere, transfers
from dovetail_checkpoint.layout import mapping, pieces, placing, target
from dovetail_checkpoint.layout.pieces import Built, Piece
from dovetail_checkpoint.layout.rules import Rule
from dovetail_checkpoint.layout.source import Source, Value
from dovetail_checkpoint.paths.opening import of_paths_that_stay, open_source
from dovetail_checkpoint.paths.orbax_item import OrbaxItem
from dovetail_checkpoint.proof import agree
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.names import leaf_names, match_names
from dovetail_checkpoint.proof.report import DamageError, Problem


@_elsewhere.load
@of_paths_that_stay
@jax.transfer_guard("allow")
def load(
    path: str | Path,
    wanted: Any,
    *,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    group_bytes: int = 1 << 30,
) -> Any:
    """Loads the leaves at `path`, changed by `rules`, into the structure of `wanted`.

    Every leaf with a recorded digest is proven.

    Args:
        path: A step of a Store or of Orbax (v0 or v1), a safetensors file, or a directory of them.
        wanted: A pytree as for `Store.restore`: abstract arrays with shardings, arrays, or numbers.
            Leaves matched by `keep_init` must be arrays.
        item: Name of the tree in a step; None if the step has only one.
        rules: Applied in order to all leaves.
        group_bytes: Bytes to read at a time. Memory peaks at the result and this, or twice the
            largest leaf if this is more.

    Returns:
        A pytree like `wanted`.

    Raises:
        ValueError: The leaves do not fit. Raised before any is read.
        DamageError: A leaf differs from its digest; the error names leaf and file.
        RuntimeError: jax.config forbids `jax.device_put`.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, load, stack
        >>> with Store("run") as store:
        ...     store.save(10, model={"layers": [{"w": jnp.ones(3)}, {"w": jnp.zeros(3)}]})
        >>> wanted = {"layers": {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)}}
        >>> load("run/10", wanted, rules=[stack("layers.#.**", "layers.**")])["layers"]["w"].sum()
        Array(3., dtype=float32)
    """
    _check_group(group_bytes)
    source = open_source(path, item=item)
    plan = mapping.compiled(source.leaves, rules, target=wanted)
    if isinstance(source, OrbaxItem):
        transfers.check(wanted)
    names, leaves, structure = leaf_names(wanted)
    by_name = dict(zip(match_names(names), leaves, strict=True))
    done = {name: by_name[name] for name in plan.initial}
    done |= _loaded(source, plan, by_name, group_bytes)
    return structure.unflatten([done[name] for name in by_name])


@_elsewhere.load
@of_paths_that_stay
def explain(
    path: str | Path, wanted: Any = None, *, item: str | None = None, rules: Sequence[Rule] = ()
) -> mapping.Explanation:
    """Returns the plan of `load`: print it to see the source of each leaf. Reads no array.

    Args:
        path: As for `load`.
        wanted: As for `load`. Without it, the plan has every leaf that the rules produce.
        item: As for `load`.
        rules: As for `load`.

    Raises:
        ValueError: The leaves do not fit.
    """
    return mapping.compiled(open_source(path, item=item).leaves, rules, target=wanted)


def proven_groups(
    source: Source, places: Mapping[str, jax.sharding.Sharding | None], *, group_bytes: int
) -> Iterator[dict[str, Value]]:
    """Yields the groups of `read_groups`. Raises DamageError on all processes if a leaf is damaged.

    Args:
        source: The leaves to read from.
        places: Sharding of each leaf; None for the host.
        group_bytes: Bytes to read at a time.
    """
    for values, problems in read_groups(source, places, group_bytes=group_bytes):
        if problems:
            raise DamageError(source.path, problems)
        yield values


def read_groups(
    source: Source, places: Mapping[str, jax.sharding.Sharding | None], *, group_bytes: int
) -> Iterator[tuple[dict[str, Value], list[Problem]]]:
    """Reads the leaves in the order of `places`, in groups.

    Args:
        source: The leaves to read from.
        places: Sharding of each leaf; None for the host.
        group_bytes: Size limit of a group, except for one larger leaf.

    Returns:
        An iterator of values by name and problems, equal on all processes: leaves that differ from
        their digests, and the damaged files. Values are empty if a process could not read.
    """
    # While a group is read, the bytes of its files lie beside the arrays: half is what fits twice.
    for names in _groups(source, list(places), group_bytes // 2):
        problems: list[Problem] = []
        values: dict[str, Value] = {}
        try:
            values = source.read({name: places[name] for name in names})
        except Exception as error:  # many types for a damaged file; told from ours by the files
            damaged = source.damaged_files(names)
            if not damaged and jax.process_count() == 1:
                raise
            problems = [
                Problem(where=names[0], reason=f"cannot be read ({error!r:.300})"),
                *damaged,
            ]
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
    digests = hex_digests([values[name] for name in checked])
    return [
        Problem(where=name, reason=f"its digest is {have}, saved was {source.leaves[name].digest}")
        for name, have in zip(checked, digests, strict=True)
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
    """Returns the wanted leaves by name, except those that keep their initial values."""
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
    """Returns the placement to read a source leaf to: like its first target, or the host if any is
    there.
    """
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
    """Returns `into` with the piece in its place; `into` is changed, or donated."""
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
