# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A request, as the scheduler sees it."""

from __future__ import annotations

import dataclasses
from hashlib import blake2b

import numpy as np

_DIGEST_BYTES = 16  # a collision needs about 2**64 blocks


@dataclasses.dataclass(kw_only=True, eq=False)
class Sequence:
    """Tokens of a request and its progress.

    The scheduler changes all fields after `priority`, and appends to `ids`. Its tokens are `ids`
    and then `pending` more, drawn by steps whose result has not come. Prefill, a chunk of it,
    resumption and decoding differ only in the number of tokens from `computed` to this total.

    Attributes:
        request_id: The request.
        ids: Token ids of the prompt, then of the output.
        prompt_length: Number of tokens of the prompt.
        max_total: Number of tokens, prompt and output together, at which the request ends. With
            `max_total == prompt_length` it reads its prompt and draws nothing.
        namespace: Seed of its block digests: weights version and adapter. Requests of different
            namespaces share no pages. Change it only while the request waits.
        read_prefix: False computes the whole prompt, and never starts from cached pages.
        priority: Lower runs earlier, and takes slots and pages from higher.
        computed: Number of tokens in the cache of the device, after the last plan.
        pending: Number of drawn tokens whose value has not come: at most 1 when a plan is made, if
            results come one step late.
        slot: Its place among the running requests. None while it waits.
        cached: Number of tokens found in the prefix cache at the first admission.
        arrival: Number of requests added before it.
        admissions: Number of times that it got a slot.
        blocks: Number of its blocks that were given pages, from its first token on.
        registered: Number of its blocks that others may share or that it shares.
        awaited: Digest of the block that it waits for, because a running request computes it.
        pages: Pages of each group. Those behind the window have been released.
    """

    request_id: int
    ids: list[int]
    prompt_length: int
    max_total: int
    namespace: bytes = b""
    read_prefix: bool = True
    priority: int = 0
    computed: int = 0
    pending: int = 0
    slot: int | None = None
    cached: int = 0
    arrival: int = dataclasses.field(default=-1, init=False)
    admissions: int = dataclasses.field(default=0, init=False)
    blocks: int = dataclasses.field(default=0, init=False)
    registered: int = dataclasses.field(default=0, init=False)
    awaited: bytes | None = dataclasses.field(default=None, init=False)
    pages: list[list[int]] = dataclasses.field(default_factory=list, init=False, repr=False)
    _digests: list[bytes] = dataclasses.field(default_factory=list, init=False, repr=False)
    _seed: bytes | None = dataclasses.field(default=None, init=False, repr=False)

    @property
    def total(self) -> int:
        """Number of tokens, those still pending included."""
        return len(self.ids) + self.pending

    @property
    def ended(self) -> bool:
        """Whether nothing is left to draw. Its last token is never read."""
        return self.total >= self.max_total > self.prompt_length

    def check(self, max_length: int) -> None:
        """Refuses lengths that are out of order, or beyond `max_length`."""
        prompt, known, total = self.prompt_length, len(self.ids), self.max_total
        if not 1 <= prompt <= known <= total <= max_length:
            raise ValueError(
                "a request must have 1 <= prompt_length <= len(ids) <= max_total <= max_length, "
                f"got prompt_length={prompt}, len(ids)={known}, max_total={total}, "
                f"max_length={max_length}; pass a shorter prompt, or a larger max_length to the "
                "engine"
            )

    def digest(self, block: int, page_size: int) -> bytes:
        """Returns the digest of a block of known tokens and of all tokens before it.

        The digest of block i is blake2b(digest of block i - 1, ids of block i as int32), seeded by
        the namespace. Each is computed once.
        """
        if self._seed != self.namespace:
            self._seed, self._digests = self.namespace, []
        while len(self._digests) <= block:
            start = len(self._digests) * page_size
            previous = self._digests[-1] if start else _digest(self.namespace)
            ids = np.array(self.ids[start : start + page_size], np.int32)
            self._digests.append(_digest(previous + ids.tobytes()))
        return self._digests[block]


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
