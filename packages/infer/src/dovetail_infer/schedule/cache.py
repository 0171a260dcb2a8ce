# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The paged cache on the host: page tables, prefix lookup, and pages behind a window.

A block is `page_size` tokens of a request at a multiple of `page_size`. It has one page in each
group. A block is found by the digest of its tokens and all tokens before it. A request starts after
the longest prefix of blocks that all groups still have: a group without a window needs every block,
a group with a window those that the next token sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Sequences

import numpy as np

from dovetail_infer.schedule.pages import PageCounts, PagePool
from dovetail_infer.schedule.plan import Limits
from dovetail_infer.schedule.sequence import Sequence


class PagedCache:
    """Pages of all groups, and the page tables of the running requests.

    Args:
        limits: Sizes of the engine.

    Attributes:
        tables: i32 [groups, max_rows, columns]. Entry [g, s, c] is the page of block c of the
            request in slot s; 0 where it has none.
    """

    def __init__(self, limits: Limits) -> None:
        self._page_size = limits.page_size
        self._windows = [group.window for group in limits.groups]
        self._most = [limits.least_pages(window) for window in self._windows]
        self._pools = [PagePool(group.pages) for group in limits.groups]
        self._shares = limits.prefix_cache
        # Blocks that running requests will fill with known tokens, and who fills them.
        self._expected: dict[bytes, int] = {}
        columns = self._blocks(limits.max_length)
        self.tables = np.zeros((len(self._pools), limits.max_rows, columns), np.int32)

    def counts(self) -> tuple[PageCounts, ...]:
        """Returns the number of used, cached and free pages of each group."""
        return tuple(pool.counts() for pool in self._pools)

    def has_pages(self, sequence: Sequence, end: int) -> bool:
        """Returns whether pages for the tokens before `end` are available."""
        needed = self._blocks(end) - sequence.blocks
        return all(pool.available >= needed for pool in self._pools)

    def extend(self, sequence: Sequence, end: int) -> None:
        """Takes pages for the tokens before `end`."""
        blocks = self._blocks(end)
        for group, pool in enumerate(self._pools):
            pages = pool.take(blocks - sequence.blocks)
            self.tables[group, sequence.slot, sequence.blocks : blocks] = pages
            sequence.pages[group] += pages
        sequence.blocks = blocks

    def to_come(self, sequence: Sequence) -> list[int]:
        """Returns the largest number of pages of each group that its known tokens still need."""
        # A pending token may have a page already.
        blocks = max(0, self._blocks(len(sequence.ids)) - sequence.blocks)
        held = zip(self._most, sequence.pages, strict=True)
        return [min(blocks, max(0, most - len(pages))) for most, pages in held]

    def lookup(self, sequence: Sequence) -> tuple[int, bytes | None]:
        """Finds the longest prefix of a waiting request in the cache.

        At least one token is left to compute, because its logits are needed.

        Returns:
            The number of blocks, and the digest of a missing block that a running request is about
            to compute, or None.
        """
        best, runs = 0, [0] * len(self._pools)
        if not (self._shares and sequence.read_prefix):
            return best, None
        for block in range((len(sequence.ids) - 1) // self._page_size):
            digest = sequence.digest(block, self._page_size)
            runs = [
                run + 1 if digest in pool else 0
                for run, pool in zip(runs, self._pools, strict=True)
            ]
            if not all(runs) and digest in self._expected:
                return best, digest
            if any(not run for run, w in zip(runs, self._windows, strict=True) if w is None):
                break
            after = block + 1
            needed = [after - first for first in self._first_blocks(after * self._page_size)]
            if all(map(int.__ge__, runs, needed)):
                best = after
        return best, None

    def fits(self, sequence: Sequence, hit: int, promised: Sequences[int]) -> bool:
        """Tests whether the pages of all known tokens of a waiting request are available.

        Args:
            sequence: A request without pages.
            hit: Number of blocks found by `lookup`.
            promised: Number of pages of each group that running requests still need.
        """
        blocks = self._blocks(len(sequence.ids))
        for group, shared in enumerate(self._shared(sequence, hit)):
            pool = self._pools[group]
            own = min(blocks - hit, self._most[group] - len(shared))
            if own + promised[group] > pool.available - pool.cached(shared):
                return False
        return True

    def reserve(self, sequence: Sequence, hit: int) -> None:
        """Gives a request with a slot the pages of its first `hit` blocks.

        Call it at once after `lookup` and `fits`: a page taken in between may be one of the hit
        (GeeeekExplorer/nano-vllm#144).

        Args:
            sequence: A request without pages.
            hit: Number of blocks found by `lookup`.
        """
        for group, shared in enumerate(self._shared(sequence, hit)):
            pages = self._pools[group].share(shared)
            self.tables[group, sequence.slot, hit - len(pages) : hit] = pages
            sequence.pages.append(pages)
        sequence.blocks = sequence.registered = hit
        if self._shares:
            for block in range(hit, len(sequence.ids) // self._page_size):
                digest = sequence.digest(block, self._page_size)
                self._expected.setdefault(digest, sequence.request_id)

    def _shared(self, sequence: Sequence, hit: int) -> list[list[bytes]]:
        """Returns the digests of the blocks before `hit` that the next token sees, by group."""
        return [
            [sequence.digest(block, self._page_size) for block in range(first, hit)]
            for first in self._first_blocks(hit * self._page_size)
        ]

    def is_expected(self, digest: bytes) -> bool:
        """Returns whether a running request is about to compute this block."""
        return digest in self._expected

    def register(self, sequence: Sequence) -> None:
        """Lets later requests find the blocks whose tokens are all computed and known."""
        if not self._shares:
            return
        full = min(sequence.computed, len(sequence.ids)) // self._page_size
        for block in range(sequence.registered, full):
            digest = sequence.digest(block, self._page_size)
            for pool, pages in zip(self._pools, sequence.pages, strict=True):
                held = block - sequence.blocks + len(pages)
                if held >= 0:
                    pool.register(pages[held], digest)
            self._forget_expected(sequence, digest)
        sequence.registered = max(full, sequence.registered)

    def release_behind(self, sequence: Sequence) -> None:
        """Releases the pages that no token from the next one on sees."""
        firsts = self._first_blocks(sequence.computed)
        for group, pages in enumerate(sequence.pages):
            oldest = sequence.blocks - len(pages)
            behind = firsts[group] - oldest
            if behind > 0:
                self._pools[group].release(pages[:behind])
                del pages[:behind]
                self.tables[group, sequence.slot, oldest : firsts[group]] = 0

    def release(self, sequence: Sequence) -> None:
        """Releases all pages of a request, and empties its row of the tables."""
        for pool, pages in zip(self._pools, sequence.pages, strict=True):
            # The last block first: without the blocks before it, it is of no use to anyone.
            pool.release(reversed(pages))
        if self._shares:
            for block in range(sequence.registered, len(sequence.ids) // self._page_size):
                self._forget_expected(sequence, sequence.digest(block, self._page_size))
        self.tables[:, sequence.slot] = 0
        sequence.pages = []
        sequence.computed = sequence.blocks = sequence.registered = 0

    def forget(self) -> None:
        """Forgets all prefixes."""
        for pool in self._pools:
            pool.forget()

    def check(self, running: Iterable[Sequence]) -> None:
        """Recounts pages and tables from the running requests.

        Raises:
            AssertionError: If they differ.
        """
        tables = np.zeros_like(self.tables)
        users = [Counter[int]() for _ in self._pools]
        for sequence in running:
            for group, pages in enumerate(sequence.pages):
                users[group].update(pages)
                first = sequence.blocks - len(pages)
                tables[group, sequence.slot, first : sequence.blocks] = pages
        for pool, counts in zip(self._pools, users, strict=True):
            pool.check(counts)
        np.testing.assert_array_equal(self.tables, tables)

    def _forget_expected(self, sequence: Sequence, digest: bytes) -> None:
        if self._expected.get(digest) == sequence.request_id:
            del self._expected[digest]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _first_blocks(self, position: int) -> list[int]:
        """Returns the first block of each group that the token at `position` sees."""
        return [
            0 if window is None else max(0, position - window + 1) // self._page_size
            for window in self._windows
        ]
