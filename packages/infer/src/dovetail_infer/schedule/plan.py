# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of an engine, and the plan of one step."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Layers that share page tables, because they have the same window.

    Attributes:
        window: Number of keys that a query sees, its own included. None: all.
        pages: Number of pages. Page ids are 0 to pages - 1.
    """

    window: int | None
    pages: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes of an engine.

    Attributes:
        page_size: Tokens per page.
        step_tokens: Largest number of tokens of a step, prefill and decode together.
        max_rows: Largest number of running requests.
        max_length: Largest number of tokens of a request, prompt and output together.
        groups: Page groups.
        prefix_cache: Whether requests share pages with equal tokens.
        prefill_tokens: Largest number of prefill tokens of a step in which requests decode. None:
            no limit but `step_tokens`.
    """

    page_size: int
    step_tokens: int
    max_rows: int
    max_length: int
    groups: tuple[Group, ...]
    prefix_cache: bool = True
    prefill_tokens: int | None = None

    def least_pages(self, window: int | None) -> int:
        """Returns the number of pages of a group that one request needs at most."""
        pages = -(-self.max_length // self.page_size)
        if window is None:
            return pages
        # The first token of a step sees window - 1 tokens before it.
        tokens = window - 1 + self.step_tokens
        return min(pages, -(-tokens // self.page_size) + 1)

    def check(self) -> None:
        """Refuses limits under which a request could never run.

        Raises:
            ValueError: If a size is below 1, or a group has too few pages for one request.
        """
        for name in ("page_size", "step_tokens", "max_rows", "max_length", "prefill_tokens"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {name}={size}; pass {name}=1 or more"
                )
        for group in self.groups:
            least = self.least_pages(group.window)
            if group.pages < least:
                raise ValueError(
                    "each group must have the pages of one request of "
                    f"max_length={self.max_length}, got pages={group.pages} with "
                    f"window={group.window}; pass pages={least} or more, or a smaller max_length"
                )


@dataclasses.dataclass(kw_only=True, slots=True)  # not frozen: that takes three times as long
class Row:
    """The part of one request in a step.

    Attributes:
        request_id: The request.
        slot: Its place among the running requests, in [0, max_rows).
        start: Position of the first token that the step reads. The cache holds all before it.
        count: Number of tokens that the step reads.
        samples: Whether the step draws the token after the last one: nothing known is left to read.
        admitted: Whether the request got its slot in this step.
    """

    request_id: int
    slot: int
    start: int
    count: int
    samples: bool
    admitted: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One step.

    Attributes:
        rows: Parts of requests, at most one each.
        preempted: Requests that lost their slot and pages to others, and wait again.
    """

    rows: tuple[Row, ...]
    preempted: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens that the step reads."""
        return sum(row.count for row in self.rows)

    @property
    def phase(self) -> Literal["prefill", "decode", "mixed"]:
        """Whether rows read new prompts (or old tokens again), their last token, or both."""
        prefills = sum(row.count > 1 or row.admitted for row in self.rows)
        if 0 < prefills < len(self.rows):
            return "mixed"
        return "prefill" if prefills else "decode"
