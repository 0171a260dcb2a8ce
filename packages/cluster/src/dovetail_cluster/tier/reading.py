# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The newest whole step on the shelves of all ranks, and its arrays on the present mesh."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail_cluster.tier.agree import gather
from dovetail_cluster.tier.blocks import assembled, leaf_name, overlap, span
from dovetail_cluster.tier.files import Header, Name, Stored, proven, verify
from dovetail_cluster.tier.folder import Folder, Key
from dovetail_cluster.tier.peers import Peers

_SHOWN = 10  # differing leaves in a message

_log = logging.getLogger("dovetail_cluster")


class Choice(NamedTuple):
    """A step with each file on some rank: `holders[writer]` has the file of a writer."""

    key: Key
    holders: tuple[int, ...]

    def file(self, writer: int) -> Name:
        """The name of a writer's file."""
        return Name(self.key.step, self.key.generation, writer, len(self.holders))


def newest(listed: Sequence[Sequence[Name]]) -> Choice | None:
    """Chooses the newest step with all files on the ranks together.

    Args:
        listed: The files of each rank.
    """
    ranks: dict[Name, list[int]] = {}
    for rank, names in enumerate(listed):
        for name in names:
            ranks.setdefault(name, []).append(rank)
    for step, generation, _, hosts in sorted(ranks, key=lambda name: name[:2], reverse=True):
        files = [Name(step, generation, writer, hosts) for writer in range(hosts)]
        if all(file in ranks for file in files):
            # Both holders of a file serve half of the files, more or less.
            holders = tuple(ranks[file][file.writer % len(ranks[file])] for file in files)
            return Choice(Key(generation, step), holders)
    return None


class Reader:
    """Reads steps from the shelves of all ranks. All ranks make the same calls.

    Args:
        folder: The files of this host.
        peers: The other ranks.
        rank: This rank.
        hosts: Number of ranks.
    """

    def __init__(self, folder: Folder, peers: Peers, *, rank: int, hosts: int) -> None:
        self._folder, self._peers, self._rank, self._hosts = folder, peers, rank, hosts
        self._proven: set[Name] = set()
        self._headers: tuple[Choice, list[Header]] | None = None

    def choose(self) -> Choice | None:
        """Returns the newest step with proven files, None without any. A collective.

        Damaged files are logged and deleted. Then the neighbour's copy is taken, or an older step.
        """
        listed = [[Name(*name) for name in names] for names in gather(self._folder.names())]
        while (choice := newest(listed)) is not None:
            own = [w for w, holder in enumerate(choice.holders) if holder == self._rank]
            damaged = [name for name in map(choice.file, own) if not self._is_whole(name)]
            answers = gather(damaged)
            if not any(answers):
                return choice
            for names, gone in zip(listed, answers, strict=True):
                for name in gone:
                    names.remove(Name(*name))
        return None

    def _is_whole(self, name: Name) -> bool:
        if name in self._proven:
            return True
        try:
            verify(self._folder.file(name), name)
        except (OSError, ValueError) as error:
            _log.warning("a file of step %d is damaged and not used: %s", name.step, error)
            self._folder.file(name).unlink(missing_ok=True)
            return False
        self._proven.add(name)
        return True

    def headers(self, choice: Choice) -> list[Header]:
        """Returns the headers of all files of a step."""
        if self._headers is None or self._headers[0] != choice:
            headers = [
                self._peers.header(choice.file(writer), holder)
                for writer, holder in enumerate(choice.holders)
            ]
            self._headers = choice, headers
        return self._headers[1]

    def states(self, choice: Choice) -> dict[str, Any]:
        """Returns the states of the objects for this rank.

        Raises:
            ValueError: They differ between ranks, and another number of ranks saved them.
        """
        headers = self.headers(choice)
        if len(headers) == self._hosts:
            return headers[self._rank].states
        for name, state in headers[0].states.items():
            if any(header.states[name] != state for header in headers):
                raise ValueError(
                    f"a state that differs between ranks must be restored by as many as saved it, "
                    f"got {self._hosts} ranks for {len(headers)} states of {name!r}; save one "
                    f"state for all ranks"
                )
        return headers[0].states

    def read(self, choice: Choice, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Reads trees and states of a step, and sets the states of objects.

        Args:
            choice: The step.
            targets: Trees of `jax.ShapeDtypeStruct`, arrays or numbers, or objects with
                `set_state`.

        Raises:
            ValueError: The targets differ from the saved items.
            OSError: A rank is gone.
        """
        import jax

        objects = {name: item for name, item in targets.items() if hasattr(item, "set_state")}
        states = self.states(choice)
        if missing := sorted(objects.keys() - states.keys()):
            raise ValueError(
                f"objects to restore must be among those saved, got {missing}; step "
                f"{choice.key.step} has {sorted(states)}"
            )
        items: dict[str, Any] = {}
        trees = {name: item for name, item in targets.items() if name not in objects}
        self._check(choice, trees)
        source = _Source(self._peers, choice, self.headers(choice))
        for name, tree in trees.items():
            paths, form = jax.tree_util.tree_flatten_with_path(tree)
            leaves = [source.leaf(leaf_name(name, path), wanted) for path, wanted in paths]
            items[name] = jax.tree.unflatten(form, leaves)
        for name, item in objects.items():
            item.set_state(states[name])
            items[name] = item
        return items

    def _check(self, choice: Choice, trees: Mapping[str, Any]) -> None:
        import jax

        header = self.headers(choice)[0]
        saved = {name: what for name, what in header.arrays.items() if name.split("/")[0] in trees}
        wanted = {}
        for tree_name, tree in trees.items():
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
                data = _data_of(leaf)
                # A number may have been saved as one of another kind.
                dtype = None if isinstance(leaf, int | float) else str(data.dtype)
                wanted[leaf_name(tree_name, path)] = dtype, tuple(data.shape)
        lines = [f"{name}: saved, not wanted" for name in saved.keys() - wanted.keys()]
        lines += [f"{name}: wanted, not saved" for name in wanted.keys() - saved.keys()]
        for name in saved.keys() & wanted.keys():
            dtype, shape = saved[name]
            if wanted[name][1] != shape or wanted[name][0] not in (None, dtype):
                lines.append(f"{name}: saved {dtype}{list(shape)}, wanted {wanted[name]}")
        if lines or trees.keys() - set(header.trees):
            shown = "\n  ".join(sorted(lines)[:_SHOWN])
            raise ValueError(
                f"the target must have the trees and leaves that were saved, got other ones for "
                f"step {choice.key.step} with the trees {header.trees}:\n  {shown}\n"
                f"build the target as the saved state was built"
            )


def _data_of(leaf: Any) -> Any:
    """The form of a leaf as it is stored: of typed keys, that of their data."""
    import jax

    if not hasattr(leaf, "dtype"):
        return np.asarray(leaf)
    if not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    like = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.eval_shape(jax.random.key_data, like)


class _Source:
    """The arrays of one step, from the shelves of all ranks."""

    def __init__(self, peers: Peers, choice: Choice, headers: Sequence[Header]) -> None:
        self._peers, self._choice = peers, choice
        self._arrays = headers[0].arrays
        self._blocks: dict[str, list[tuple[int, Stored]]] = {}
        for writer, header in enumerate(headers):
            for block in header.blocks:
                self._blocks.setdefault(block.name, []).append((writer, block))

    def leaf(self, name: str, wanted: Any) -> Any:
        """Returns a leaf in the wanted form."""
        import jax

        dtype, shape = np.dtype(self._arrays[name][0]), self._arrays[name][1]
        read: dict[int, np.ndarray] = {}

        def values(index: Any) -> np.ndarray:
            return assembled(index, shape, dtype, self._parts(name, index, read))

        if not isinstance(wanted, jax.Array | jax.ShapeDtypeStruct):
            whole = values((slice(None),) * len(shape))
            return type(wanted)(whole.item()) if isinstance(wanted, int | float) else whole
        array = jax.make_array_from_callback(shape, _sharding(name, wanted), values)
        return _as_wanted(array, wanted)

    def _parts(
        self, name: str, index: Any, read: dict[int, np.ndarray]
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        dtype, shape = self._arrays[name]
        begin, size = span(index, shape)
        for number, (writer, block) in enumerate(self._blocks.get(name, ())):
            if overlap(begin, size, block.begin, block.shape) is None:
                continue
            if number not in read:
                file, holder = self._choice.file(writer), self._choice.holders[writer]
                data = self._peers.read(file, holder, block.offset, block.size_bytes)
                read[number] = proven(block, data, np.dtype(dtype))
            yield block.begin, read[number]


def _sharding(name: str, wanted: Any) -> Any:
    import jax

    if wanted.sharding is not None:
        return wanted.sharding
    if jax.process_count() > 1:
        raise ValueError(
            f"with several ranks each target must have a sharding, got None for {name}; write "
            f"jax.ShapeDtypeStruct(shape, dtype, sharding=...)"
        )
    return jax.numpy.zeros(()).sharding


def _as_wanted(array: Any, wanted: Any) -> Any:
    """Makes typed keys of their data, if the target has them."""
    import jax

    if not jax.numpy.issubdtype(wanted.dtype, jax.dtypes.prng_key):
        return array
    impls = []
    like = jax.ShapeDtypeStruct(wanted.shape, wanted.dtype)
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(array, impl=impls[0])
