# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageStats:
    """Pages of the layers with one window.

    Attributes:
        window: The window in tokens, or None.
        used: Pages of running requests.
        cached: Pages kept for later requests with the same prefix.
        free: Other pages.
    """

    window: int | None
    used: int
    cached: int
    free: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """State of an engine, and counters since it was built.

    Attributes:
        waiting: Requests in the queue.
        running: Requests with a place in the steps.
        pages: Pages of each window.
        steps: Steps so far.
        read_tokens: Tokens that steps have read: prompts, outputs, and both again after a
            preemption.
        drawn_tokens: Tokens drawn for requests.
        prompt_tokens: Tokens of the prompts of admitted requests.
        cached_tokens: Those of them that the prefix cache had.
        finished: Number of finished requests by reason.
        preemptions: Requests that gave their pages to others and were computed again.
        failed_steps: Steps that raised an error.
        late_compiles: Programs that were compiled during a step.
        compiled: Programs that are compiled.
        version: Version of the weights.
        host_s: CPU seconds of the engine's thread, compilation and waiting left out.
        step_s: Seconds in which a step was on the device, or waited for.
    """

    waiting: int
    running: int
    pages: tuple[PageStats, ...]
    steps: int
    read_tokens: int
    drawn_tokens: int
    prompt_tokens: int
    cached_tokens: int
    finished: Mapping[str, int]
    preemptions: int
    failed_steps: int
    late_compiles: int
    compiled: int
    version: int
    host_s: float
    step_s: float
