# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler: the requests of each step, their tokens and their pages.

A request has a number of computed tokens and a total. A step reads some of the tokens in between,
and draws the next token when it reaches the total. Prefill, a chunk of it, a prefix hit, resumption
and decoding are all this one case (vLLM V1 has the same idea). There is no JAX, no clock and no
random number here: the same calls give the same plans, so a log of the calls replays
(`dovetail_infer.schedule.replay`).

- Order: by priority, lower numbers first, then by arrival. "Older" below means earlier in it.
- Budget: `step_tokens` go to decoding requests first, then to running prefills, then to admissions;
  each in order. Beside decoding requests, prefills and admissions get `prefill_tokens` at most.
- Pages: an older request takes those of the youngest running one, which waits again in its place of
  the queue. The oldest request therefore always moves on. The youngest skips the step if there are
  no pages for it, and keeps those that it has.
- Queue: in order; the first request that does not fit stops the admissions. A request fits if a
  slot is free, and the pages of all its known tokens are available beside those that running
  prefills still need. The first of the queue takes slots and pages from running requests of larger
  priority numbers until it fits: one request in each step, so that the others move on.
- Duplicates: a request whose next block is being computed by a running one waits for that block,
  since two would compute the same. Only such a request may be overtaken. It waits for requests that
  run already and are never slowed by later ones, so it cannot starve, and strangers need not wait
  for a long prompt because it came twice.
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_infer.schedule import events
from dovetail_infer.schedule.cache import PagedCache
from dovetail_infer.schedule.pages import PageCounts
from dovetail_infer.schedule.plan import Limits, Plan, Row
from dovetail_infer.schedule.sequence import Sequence

_ORDER = attrgetter("priority", "arrival")


@dataclasses.dataclass(kw_only=True)
class Counters:
    """Counts since the scheduler was made.

    Attributes:
        preemptions: Requests that lost their pages to older ones.
        prompt_tokens: Tokens of the prompts of all admitted requests.
        cached_tokens: Those found in the prefix cache.
    """

    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Scheduler:
    """Decides the steps of an engine.

    Args:
        limits: Sizes of the engine.
        record: Called with each event, a dict of JSON values: each call that changes something, and
            each plan. None: no log.

    Attributes:
        limits: Sizes of the engine.
        counters: Counts since the beginning.

    Raises:
        ValueError: If a group has too few pages for one request, or the budget is too small.

    Example:
        >>> from dovetail_infer.schedule.plan import Group, Limits
        >>> limits = Limits(page_size=4, step_tokens=8, max_rows=2, max_length=16,
        ...                 groups=(Group(window=None, pages=8),))
        >>> scheduler = Scheduler(limits)
        >>> scheduler.add(Sequence(request_id=7, ids=[1, 2, 3], prompt_length=3, max_total=5))
        >>> [(row.request_id, row.start, row.count, row.samples) for row in scheduler.plan().rows]
        [(7, 0, 3, True)]
    """

    def __init__(
        self, limits: Limits, *, record: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        limits.check()
        self.limits = limits
        self.counters = Counters()
        self._record = record
        self._cache = PagedCache(limits)
        self._free_slots = list(range(limits.max_rows - 1, -1, -1))
        self._running: list[Sequence] = []  # in order, as the next
        self._waiting: list[Sequence] = []
        self._sequences: dict[int, Sequence] = {}
        self._arrivals = 0
        self._has_windows = any(group.window is not None for group in limits.groups)
        if record:
            record(events.limits(limits))

    @property
    def tables(self) -> Int32[np.ndarray, "G S C"]:
        """Page of each block of the request in each slot, for each group; 0 where it has none."""
        return self._cache.tables

    @property
    def waiting(self) -> int:
        """Number of requests without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests with a slot."""
        return len(self._running)

    def pages(self) -> tuple[PageCounts, ...]:
        """Returns the number of used, cached and free pages of each group."""
        return self._cache.counts()

    def add(self, sequence: Sequence) -> None:
        """Adds a request to the queue, behind all of its priority.

        Raises:
            ValueError: If its id is in use, its prompt is empty, or it is too long.
        """
        sequence.check(self.limits.max_length)
        if sequence.request_id in self._sequences:
            raise ValueError(
                f"a request_id names one request at a time, got request_id={sequence.request_id} "
                "again; pass a new one"
            )
        sequence.arrival, self._arrivals = self._arrivals, self._arrivals + 1
        self._sequences[sequence.request_id] = sequence
        insort(self._waiting, sequence, key=_ORDER)
        if self._record:
            self._record(events.add(sequence))

    def plan(self) -> Plan | None:
        """Decides one step and applies it: pages are taken, and its tokens count as computed.

        Dispatch the step before the next plan. Steps run on the device in the order of their plans,
        so pages that one request gives up can be written for another at once.

        Returns:
            The step, or None if no request has a token to read.
        """
        rows: list[Row] = []
        planned: list[Sequence] = []
        if self._has_windows:
            for sequence in self._running:
                self._cache.release_behind(sequence)
        preempted = self._make_way()
        given_way = len(preempted)
        counts, budget = self._divide_budget()
        stalled = self._continue(counts, rows, planned, preempted)
        if not stalled and len(preempted) == given_way:
            self._admit(budget, rows, planned)
        for sequence in planned:
            # Only now: a request admitted in this step must not read what this step writes.
            if sequence.computed >= (sequence.registered + 1) * self.limits.page_size:
                self._cache.register(sequence)
        plan = Plan(rows=tuple(rows), preempted=tuple(s.request_id for s in preempted))
        if self._record:
            self._record(events.step(plan))
        return plan if rows else None

    def sampled(self, request_id: int, token: int) -> bool:
        """Adds the drawn token of a step to its request, also to one preempted meanwhile.

        Call it in the order of the steps.

        Returns:
            False, and nothing changes, if the request has finished or its draw was reset.
        """
        sequence = self._sequences.get(request_id)
        if self._record:
            self._record(events.sampled(request_id, token))
        if sequence is None or not sequence.pending:
            return False
        sequence.ids.append(token)
        sequence.pending -= 1
        if len(sequence.ids) % self.limits.page_size == 0 and sequence.slot is not None:
            # The step that completed this block was planned before its last token was known.
            self._cache.register(sequence)
        return True

    def finish(self, request_id: int) -> bool:
        """Removes a request in any state, and returns its pages at once.

        Returns:
            False if there is no such request.
        """
        if self._record:
            self._record(events.finish(request_id))
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._vacate(sequence)
        return True

    def reset(self, request_ids: Iterable[int] | None = None) -> None:
        """Forgets the computed tokens of requests; those that run wait again, in order.

        Known ids stay. Draws in flight are forgotten: after a failed step they never come, and
        those of earlier steps must be reported before.

        Args:
            request_ids: The requests. None: all.
        """
        ids = None if request_ids is None else list(request_ids)
        if self._record:
            self._record(events.reset(ids))
        for request_id in list(self._sequences) if ids is None else ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                sequence.pending = 0
                if sequence.slot is not None:
                    self._running.remove(sequence)
                    self._vacate(sequence)
                    insort(self._waiting, sequence, key=_ORDER)

    def rename(self, request_id: int, namespace: bytes) -> None:
        """Changes the namespace of a waiting request, after a `reset` for new weights."""
        if self._record:
            self._record(events.rename(request_id, namespace))
        sequence = self._sequences[request_id]
        assert sequence.slot is None, request_id
        sequence.namespace, sequence.awaited = namespace, None

    def drop_cache(self) -> None:
        """Forgets all prefixes: after a failed step, and with new weights."""
        if self._record:
            self._record(events.drop_cache())
        self._cache.forget()

    def check(self) -> None:
        """Recounts pages, tables, slots and queues.

        Raises:
            AssertionError: If any of them is wrong.
        """
        self._cache.check(self._running)
        slots = [sequence.slot for sequence in self._running if sequence.slot is not None]
        assert sorted([*slots, *self._free_slots]) == list(range(self.limits.max_rows))
        for queue in (self._running, self._waiting):
            assert queue == sorted(queue, key=_ORDER)
        ids = [sequence.request_id for sequence in [*self._running, *self._waiting]]
        assert sorted(ids) == sorted(self._sequences)

    def _make_way(self) -> list[Sequence]:
        """Preempts requests for the first of the queue, from the last on, until it fits."""
        preempted: list[Sequence] = []
        first = self._waiting[0] if self._waiting else None
        if first is None or first.pending or first.ended:
            return preempted
        while self._running and self._running[-1].priority > first.priority:
            hit, awaited = self._cache.lookup(first)
            if awaited is not None:
                break
            if self._free_slots and self._cache.fits(first, hit, self._promised()):
                break
            preempted.append(self._preempt())
        return preempted

    def _promised(self) -> list[int]:
        """Returns the number of pages of each group that running prefills still need."""
        to_come = map(self._cache.to_come, self._running)
        return [sum(pages) for pages in zip([0] * len(self.limits.groups), *to_come, strict=True)]

    def _divide_budget(self) -> tuple[list[int], int]:
        """Divides the budget among the running requests. Returns their tokens and the rest."""
        budget = self.limits.step_tokens
        counts = [0] * len(self._running)
        prefills, cap, decodes = [], self.limits.prefill_tokens, False
        for i, sequence in enumerate(self._running):
            total = len(sequence.ids) + sequence.pending
            left = total - sequence.computed
            if left > 1:
                prefills.append((i, sequence, total))
            elif left and not total >= sequence.max_total > sequence.prompt_length:
                counts[i] = 1
                budget -= 1
                if sequence.computed >= sequence.prompt_length:
                    decodes = True
                elif cap is not None:
                    cap -= 1  # the last token of a prompt; at most one request is in its midst
        if decodes and cap is not None:
            budget = min(budget, cap)
        # There is budget for each if there is no cap: there was when the last was admitted, and
        # none reads more tokens in a step than then.
        for i, sequence, total in prefills:
            counts[i] = min(total - sequence.computed, budget)
            budget -= counts[i]
        return counts, budget

    def _continue(
        self,
        counts: list[int],
        rows: list[Row],
        planned: list[Sequence],
        preempted: list[Sequence],
    ) -> bool:
        """Adds the rows of running requests. Returns whether one got no pages."""
        page_size = self.limits.page_size
        for sequence, count in zip(list(self._running), counts, strict=True):
            if sequence.slot is None:
                break  # preempted for an older request, as all that follow
            end = sequence.computed + count
            if end > sequence.blocks * page_size:
                while not self._cache.has_pages(sequence, end):
                    if self._running[-1] is sequence:
                        return True
                    preempted.append(self._preempt())
                self._cache.extend(sequence, end)
            if count:
                rows.append(self._row(sequence, count, admitted=False))
                planned.append(sequence)
        return False

    def _preempt(self) -> Sequence:
        victim = self._running.pop()
        self._vacate(victim)
        insort(self._waiting, victim, key=_ORDER)
        self.counters.preemptions += 1
        return victim

    def _admit(self, budget: int, rows: list[Row], planned: list[Sequence]) -> None:
        """Admits waiting requests, and adds their rows."""
        if not (self._waiting and budget and self._free_slots):
            return
        promised = self._promised()
        for sequence in self._waiting[: self.limits.max_rows]:
            if not (budget and self._free_slots) or sequence.pending or sequence.ended:
                return
            if sequence.awaited is not None and self._cache.is_expected(sequence.awaited):
                continue
            hit, sequence.awaited = self._cache.lookup(sequence)
            if sequence.awaited is not None:
                continue
            start = hit * self.limits.page_size
            count = min(len(sequence.ids) - start, budget)
            if not self._cache.fits(sequence, hit, promised):
                return
            sequence.slot = self._free_slots.pop()
            self._cache.reserve(sequence, hit)
            self._waiting.remove(sequence)
            self._enter(sequence, start)
            self._cache.extend(sequence, start + count)
            rows.append(self._row(sequence, count, admitted=True))
            planned.append(sequence)
            budget -= count
            promised = list(map(int.__add__, promised, self._cache.to_come(sequence)))

    def _enter(self, sequence: Sequence, start: int) -> None:
        """Makes an admitted request a running one."""
        sequence.computed = start
        if sequence.admissions == 0:
            sequence.cached = start
            self.counters.cached_tokens += start
            self.counters.prompt_tokens += sequence.prompt_length
        sequence.admissions += 1
        insort(self._running, sequence, key=_ORDER)

    def _row(self, sequence: Sequence, count: int, *, admitted: bool) -> Row:
        """Counts the tokens of a row as computed, and its draw as pending."""
        start = sequence.computed
        total = len(sequence.ids) + sequence.pending
        samples = start + count == total and total < sequence.max_total
        sequence.computed = start + count
        sequence.pending += samples
        assert sequence.slot is not None
        return Row(
            request_id=sequence.request_id,
            slot=sequence.slot,
            start=start,
            count=count,
            samples=samples,
            admitted=admitted,
        )

    def _vacate(self, sequence: Sequence) -> None:
        """Takes slot and pages from a request that no longer runs."""
        assert sequence.slot is not None
        self._cache.release(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = sequence.awaited = None
