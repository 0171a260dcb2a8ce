# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loaded adapters, their places in the stack of the model, and the versions of all weights.

An id is given once, also if the place of its adapter is used again: a request that comes late finds
its adapter or is refused, and never meets another one. Ids 0 to n - 1 are those of the model.

A request computes with the base and one adapter, so the version of its weights is that of the
newest update of either. Updates of other adapters leave its version, and its cached pages, alone.
"""

from __future__ import annotations

import numbers
import threading
from collections.abc import Collection, Iterator
from hashlib import blake2b

MAX_VERSION = 2**31 - 1  # `Completion.versions` are int32


class NoPlace(ValueError):
    """All places for adapters are taken."""


class Adapters(Collection[int]):
    """Adapters of an engine. Its thread alone changes them; the ids are for any thread.

    Args:
        count: Number of adapters of the model, all of them loaded.

    Attributes:
        base_version: Version of the base.
        newest: The newest version of all weights.
    """

    def __init__(self, count: int):
        self.base_version = self.newest = 0
        self._places = {i: i for i in range(count)}
        self._versions: dict[int, int] = {}  # of the adapters with an update of their own
        self._leaving: dict[int, threading.Event] = {}
        self._open = tuple(range(count))
        self._count, self._next_id = count, count

    def __contains__(self, adapter: object) -> bool:
        return adapter in self._open

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def place(self, adapter: int | None) -> int:
        """Returns the place of an adapter in the stack; -1 for the base."""
        return -1 if adapter is None else self._places[adapter]

    def version(self, adapter: int | None) -> int:
        """Returns the version of the weights that a request with this adapter computes with."""
        own = 0 if adapter is None else self._versions.get(adapter, 0)
        return max(self.base_version, own)

    def update(self, adapter: int | None, version: int) -> None:
        """Counts an update of an adapter, or of all weights (None)."""
        self.newest = max(self.newest, version)
        if adapter is None:
            self.base_version = version
        else:
            self._versions[adapter] = version

    def free_place(self) -> int:
        """Returns the first place without an adapter.

        Raises:
            NoPlace: There is none.
        """
        used = set(self._places.values())
        place = next((place for place in range(self._count) if place not in used), None)
        if place is None:
            raise NoPlace(
                f"an adapter needs a free place of the engine's {self._count}, got the loaded "
                f"adapters {', '.join(map(str, self._open))}. Call unload_adapter of one, or build "
                "the engine with a model of more."
            )
        return place

    def add(self, place: int) -> int:
        """Returns the id of the adapter that a place has from now on."""
        adapter, self._next_id = self._next_id, self._next_id + 1
        self._places[adapter] = place
        self._open = (*self._open, adapter)
        return adapter

    def leave(self, adapter: int) -> threading.Event:
        """Refuses an adapter to new requests. The event comes with `drop`."""
        self._open = tuple(i for i in self._open if i != adapter)
        return self._leaving.setdefault(adapter, threading.Event())

    def is_leaving(self, adapter: int | None) -> bool:
        """Tests whether the place of an adapter is to be freed when its last request ends."""
        return adapter in self._leaving

    def drop(self, adapter: int) -> None:
        """Frees the place of an adapter that has left."""
        self._leaving.pop(adapter).set()
        self._versions.pop(adapter, None)
        del self._places[adapter]

    def namespace(self, adapter: int | None, salt: str | None) -> bytes:
        """Returns the namespace of block digests: all that cached keys depend on, and the salt.

        Each field has its length before it, so no two sets of fields are the same bytes.
        """
        versions = self.base_version, 0 if adapter is None else self._versions.get(adapter, 0)
        fields = [str(x).encode() for x in (*versions, -1 if adapter is None else adapter)]
        fields += [] if salt is None else [salt.encode("utf-8", "surrogatepass")]
        framed = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
        return blake2b(framed, digest_size=16).digest()


def next_version(version: int | None, present: int) -> int:
    """Returns the version of an update.

    Args:
        version: What was asked for. None: the next.
        present: That of the weights that it replaces.

    Raises:
        ValueError: It is not above `present`, or no int32.
        TypeError: It is no integer.
    """
    version = present + 1 if version is None else version
    if isinstance(version, bool) or not isinstance(version, numbers.Integral):
        raise TypeError(f"version must be an integer, got version={version!r}. Count updates.")
    if version > MAX_VERSION:
        raise ValueError(
            f"version must be an int32, at most {MAX_VERSION}, got version={version}. Count "
            "updates."
        )
    if version <= present:
        raise ValueError(
            f"version must be above that of the present weights, {present}, got "
            f"version={version}. Count updates."
        )
    return int(version)
