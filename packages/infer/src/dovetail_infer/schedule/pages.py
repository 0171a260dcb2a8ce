# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of one group, counted by their users."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class PageCounts(NamedTuple):
    """Pages of a group by state.

    Attributes:
        used: Held by at least one running request.
        cached: Held by none, with known tokens that a later request may share.
        free: The others.
    """

    used: int
    cached: int
    free: int


class PagePool:
    """Page ids of one group. Each page is free, used or cached.

    A page is registered under the digest of its tokens once the step that fills it is planned. When
    its last user releases it, a registered page becomes cached, any other becomes free. `take`
    prefers free pages, and then evicts the cached page that was released first.

    Args:
        pages: Number of pages.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._users = [0] * pages
        self._free = list(range(pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._digests: dict[int, bytes] = {}
        self._registered: dict[bytes, int] = {}

    def __contains__(self, digest: bytes) -> bool:
        """Returns whether a page has the tokens of this digest."""
        return digest in self._registered

    @property
    def available(self) -> int:
        """Number of pages that `take` can give."""
        return len(self._free) + len(self._cached)

    def counts(self) -> PageCounts:
        """Returns the number of pages in each state."""
        return PageCounts(self.pages - self.available, len(self._cached), len(self._free))

    def cached(self, digests: Iterable[bytes]) -> int:
        """Returns how many of these registered pages are cached, with no user."""
        return sum(self._registered[digest] in self._cached for digest in digests)

    def take(self, count: int) -> list[int]:
        """Takes pages, each with one user. The caller has checked `available`."""
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, digests: Iterable[bytes]) -> list[int]:
        """Adds a user to the pages of these registered digests, and returns the pages."""
        pages = [self._registered[digest] for digest in digests]
        for page in pages:
            self._cached.pop(page, None)
            self._users[page] += 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Removes a user from each page. The first page is the first to be evicted."""
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                if page in self._digests:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def register(self, page: int, digest: bytes) -> None:
        """Lets later requests find a used page by the digest of its tokens.

        The first page of a digest stays. A later page with the same tokens remains private.
        """
        if digest not in self._registered:
            self._registered[digest] = page
            self._digests[page] = digest

    def forget(self) -> None:
        """Forgets the tokens of all pages. Cached pages become free."""
        self._digests.clear()
        self._registered.clear()
        self._free.extend(self._cached)
        self._cached.clear()

    def check(self, users: Mapping[int, int]) -> None:
        """Recounts the pages.

        Args:
            users: Number of holders of each used page.

        Raises:
            AssertionError: If a count, a state or a digest is not that of the holders.
        """
        for page, count in enumerate(self._users):
            assert count == users.get(page, 0), (page, count, users.get(page, 0))
        states = [*users, *self._cached, *self._free]
        assert sorted(states) == list(range(self.pages)), states
        assert {digest: page for page, digest in self._digests.items()} == self._registered
        assert not set(self._digests) & set(self._free)
        assert set(self._cached) <= set(self._digests)

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        del self._registered[self._digests.pop(page)]
        return page
