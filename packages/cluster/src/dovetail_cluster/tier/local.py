# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A store of checkpoints in the memory of the hosts, in front of a durable one.

Every save goes to the shelves: each rank writes its share to a folder of its host, and a copy to
the next host's. Every so many steps, and at the end, the step goes to the store too. After a crash
all ranks use the newest step with every file on some living host. A dead host took its shelf along,
but its neighbour has the copy.

The shelves are those of one run of a cluster: the next run begins with the store alone.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_cluster import _elsewhere
from dovetail_cluster.context import Context
from dovetail_cluster.control.interval import advised_interval_s
from dovetail_cluster.store import SAVE, DurableStore, check, save
from dovetail_cluster.tier import blocks as division
from dovetail_cluster.tier.agree import gather
from dovetail_cluster.tier.files import Header, Name, with_blocks, write
from dovetail_cluster.tier.folder import Folder, Key
from dovetail_cluster.tier.peers import Peers
from dovetail_cluster.tier.reading import Choice, Reader

_log = logging.getLogger("dovetail_cluster")


@dataclasses.dataclass(frozen=True)
class Advice:
    """The interval between saves with the least wasted time.

    Attributes:
        save_s: Mean seconds of waiting for a save.
        failure_s: Seconds of the run per restart, or all of them without one.
        interval_s: Advised seconds from one save to the next; see `advised_interval_s`.
    """

    save_s: float
    failure_s: float
    interval_s: float


class _State:
    """The state of an object, as it was at a save."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get_state(self) -> Any:
        return self._state

    def set_state(self, state: Any) -> None:
        self._state = state


@dataclasses.dataclass(frozen=True)
class _Step:
    """The newest step on the shelves, and how to read it for the store."""

    choice: Choice
    trees: Mapping[str, Any]
    states: Mapping[str, Any]
    metrics: Mapping[str, float]


@_elsewhere.call
class LocalTier:
    """A store whose saves go to the hosts' memory first, and to a durable store in the background.

    Give it to a trainer in place of the store. All ranks make the same calls on their main threads.
    `wait` hands the newest step to the store, so the end of a run and an agreed stop are durable.

    Each array is held once on the shelves, and once more as a copy on the next host. Shelves are
    folders in /dev/shm. The variable DOVETAIL_CLUSTER_SHELF of the hosts names another place, such
    as a local disk. They end with the run. Each rank also keeps a buffer of its share.

    Args:
        context: The rank.
        store: The durable store. Close it yourself, after the tier.
        store_every: A step goes to the store when it reaches or passes the next multiple of it.
        limit_bytes: Most bytes on one shelf. A host needs room for two steps, of its own files and
            of its neighbour's. Default: half of the free bytes.

    Attributes:
        failures: Number of failed saves on the shelves of this rank and its neighbour. The store
            takes the step after such a save.

    Raises:
        ValueError: A number is below 1.
        TypeError: The store lacks a method.
        RuntimeError: The context is not that of a rank of a `Cluster`.

    Example:

        def train(ctx):
            with Store("run") as store, LocalTier(ctx, store, store_every=100) as tier:
                trainer.fit(model, data, steps=1000, store=tier, save_every=5, stop=ctx.stop)
    """

    def __init__(
        self,
        context: Context,
        store: DurableStore,
        *,
        store_every: int,
        limit_bytes: int | None = None,
    ) -> None:
        home = context._home
        if home is None or not home.shelf:
            raise RuntimeError(
                "a tier must be made by a rank of a cluster, got a context without a daemon; call "
                "it in the function that Cluster.run gets"
            )
        for name, number in (("store_every", store_every), ("limit_bytes", limit_bytes)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}; write {name}=100")
        self._store, self._every, self._begun_s = check(store), store_every, home.begun_s
        self._context = context
        self._rank, self._hosts = context.rank, context.hosts
        self._generation = context.generation
        path = Path(home.shelf) / str(context._tiers)
        context._tiers += 1
        free_bytes = shelf_bytes(Path(home.shelf)) // 2
        self._limit_bytes = min(gather(limit_bytes or free_bytes))
        self._folder = Folder(path, self._limit_bytes)
        rank, hosts = self._rank, self._hosts
        self._peers = Peers(self._folder, local=home.local, rank=rank, hosts=hosts)
        self._reader = Reader(self._folder, self._peers, rank=rank, hosts=hosts)
        self._writer: threading.Thread | None = None
        self._error: str | None = None
        self._buffer = np.empty(0, np.uint8)
        self._newest: _Step | None = None
        self._stored = 0  # the newest step of the store
        self._saves, self._save_s = 0, 0.0
        self.failures = 0

    def __enter__(self) -> LocalTier:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._peers.close()

    def save(self, step: int, *, metrics: Mapping[str, float] | None = None, **items: Any) -> None:
        """Copies all items to the host and returns; files and the neighbour's copy follow.

        Waits for the previous save. Passes the items on to the store if the step is due there.

        Args:
            step: Number of the step.
            metrics: Scalars of the step. The store gets them if its `save` declares `metrics`.
            items: Trees of arrays and numbers, or objects with `get_state` and `set_state`.

        Raises:
            ValueError: The shelf is too small for two steps, or an array is not on all ranks.
            TypeError: A leaf is neither array nor number.
        """
        import jax

        with self._context.phase(SAVE), jax.transfer_guard("allow"):
            begun = time.monotonic()
            are_whole = self._settle()
            self._write(step, items, dict(metrics or {}))
            self._saves, self._save_s = self._saves + 1, self._save_s + time.monotonic() - begun
            if step // self._every > self._stored // self._every or not are_whole:
                self._hand_over(step, items, metrics or {})

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """Restores the newest step, from the shelves or from the store.

        The number of ranks may have changed. A damaged file is logged, and a copy or an older step
        is used.

        Args:
            targets: Trees of `jax.ShapeDtypeStruct` with shardings, of arrays or of numbers, or
                objects with `set_state`.

        Returns:
            The step and its items, or None if nothing was saved.

        Raises:
            ValueError: The targets differ from the saved items.
            OSError: A rank was lost meanwhile.
        """
        import jax

        self._settle()
        with jax.transfer_guard("allow"):
            choice = self._choose(next(iter(targets), ""))
            if choice is None:
                restored = self._store.restore(**targets)
                if restored is not None:
                    self._stored = restored[0]
                return restored
            items = self._reader.read(choice, targets)
            self._folder.complete = choice.key
            step, generation = choice.key.step, choice.key.generation
            _log.info("step %d of generation %d is restored from the shelves", step, generation)
            header = self._reader.headers(choice)[0]
            if set(targets) >= {*header.trees, *header.states}:
                trees = {name: items[name] for name in header.trees}
                states = self._reader.states(choice)
                self._newest = _Step(choice, abstract(trees), states, header.metrics)
            return step, items

    def peek(self, name: str) -> tuple[int, Any] | None:
        """Reads the state of one object in the newest step, and no array.

        Args:
            name: Name of the object.

        Returns:
            The step and the state, None for the state without that object. None if nothing was
            saved.
        """
        self._settle()
        choice = self._choose(name)
        if choice is None:
            return self._store.peek(name)
        return choice.key.step, self._reader.states(choice).get(name)

    def wait(self) -> None:
        """Hands the newest step to the store, and returns when it is durable.

        While an exception is handled it hands nothing over: other ranks may be elsewhere. One of
        several ranks then does not wait for the store either, whose other ranks it may wait for.

        Raises:
            RuntimeError: The newest step is not whole on the shelves.
        """
        with self._context.phase(SAVE):
            self._wait()

    def _wait(self) -> None:
        newest, is_handled = self._newest, sys.exc_info()[0] is not None
        if is_handled and self._hosts > 1:
            return
        if not is_handled and newest is not None:
            are_whole, step = self._settle(), newest.choice.key.step
            if step > self._stored and not are_whole:
                raise RuntimeError(
                    f"step {step} must be whole on all shelves to reach the store, got a failure "
                    f"(see the log); restore the newest step and go on from it"
                )
            if step > self._stored:
                objects = {name: _State(state) for name, state in newest.states.items()}
                trees = self._reader.read(newest.choice, newest.trees)
                self._hand_over(step, {**trees, **objects}, newest.metrics)
        self._store.wait()

    def advice(self) -> Advice:
        """Advises the interval between saves, from the saves and restarts of this run so far.

        Raises:
            RuntimeError: Nothing was saved yet.
        """
        if not self._saves:
            raise RuntimeError("advice must follow a save, got none; call save first")
        save_s = self._save_s / self._saves
        failure_s = (time.time() - self._begun_s) / max(1, self._generation)
        return Advice(save_s, failure_s, advised_interval_s(save_s, failure_s))

    # Writing.

    def _write(self, step: int, items: Mapping[str, Any], metrics: dict[str, float]) -> None:
        states = {n: item.get_state() for n, item in items.items() if hasattr(item, "get_state")}
        trees = {name: item for name, item in items.items() if name not in states}
        leaves = division.leaves(trees)
        blocks = division.divide(leaves)
        self._check_room(blocks)
        name = Name(step, self._generation, self._rank, self._hosts)
        arrays = {leaf.name: (str(leaf.value.dtype), leaf.value.shape) for leaf in leaves}
        own = [block for block in blocks if block.writer == self._rank]
        header = with_blocks(Header(name, arrays, [*trees], states, metrics, []), own)
        choice = Choice(Key(self._generation, step), tuple(range(self._hosts)))
        self._newest = _Step(choice, abstract(trees), states, metrics)
        if self._buffer.size < header.end:
            self._buffer = np.empty(header.end, np.uint8)  # kept: fresh pages cost more than a copy
        values = division.host_blocks(leaves, blocks, self._rank)
        for block, (_, value) in zip(header.blocks, values, strict=True):
            place = self._buffer[block.offset : block.offset + block.size_bytes]
            place[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self._writer = threading.Thread(
            target=self._finish, args=(name, header), daemon=True, name="dovetail-tier"
        )
        self._writer.start()

    def _finish(self, name: Name, header: Header) -> None:
        try:
            path = self._folder.new(name, header.size_bytes)
            write(path, header, self._buffer[: header.end].data)
            self._folder.put(name)
            if self._hosts > 1:
                self._peers.copy(name, (self._rank + 1) % self._hosts)
        except OSError as error:
            self._error = str(error)
            self.failures += 1
            self._folder.drop(name)
            _log.warning("step %d is not whole on the shelves: %s", name.step, error)

    def _settle(self) -> bool:
        """Waits for the last save. Returns whether it is whole on all ranks. A collective."""
        if self._writer is None:
            return True
        self._writer.join()
        self._writer = None
        error, self._error = self._error, None
        are_whole = not any(gather(error))
        if are_whole and self._newest is not None:
            self._folder.complete = self._newest.choice.key
        return are_whole

    def _check_room(self, blocks: list[division.Block]) -> None:
        sizes = [0] * self._hosts
        for block in blocks:
            sizes[block.writer] += block.size_bytes
        copies = [sizes[rank - 1] if self._hosts > 1 else 0 for rank in range(self._hosts)]
        need = 2 * max(own + copy for own, copy in zip(sizes, copies, strict=True))
        if need > self._limit_bytes:
            raise ValueError(
                f"a shelf must have room for two steps, with the copies of a neighbour, of "
                f"{need} bytes on one host, got limit_bytes={self._limit_bytes}; write "
                f"LocalTier(..., limit_bytes={need + need // 8}), or name a larger place in the "
                f"variable DOVETAIL_CLUSTER_SHELF"
            )

    # The store.

    def _hand_over(self, step: int, items: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        save(self._store, step, items, metrics)
        self._stored = step

    def _choose(self, name: str) -> Choice | None:
        """The newest step of the shelves, None if the store has a newer one."""
        choice, stored = self._reader.choose(), self._store.peek(name)
        if stored is not None:
            self._stored = stored[0]
        is_newest = choice is not None and (stored is None or choice.key.step >= stored[0])
        return choice if is_newest else None


def shelf_bytes(path: Path) -> int:
    """Free bytes of the shelf's file system."""
    import shutil

    return shutil.disk_usage(path).free


def abstract(trees: Mapping[str, Any]) -> dict[str, Any]:
    """Returns targets for trees: shapes, dtypes and shardings in place of jax arrays."""
    import jax

    def leaf(value: Any) -> Any:
        if not isinstance(value, jax.Array):
            return value
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=value.sharding)

    return {name: jax.tree.map(leaf, tree) for name, tree in trees.items()}
