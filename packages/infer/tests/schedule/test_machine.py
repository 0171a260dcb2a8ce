# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random calls of a scheduler, against a device that remembers every cached token.

The device keeps the tokens of which each key was computed: all those of the request up to its
position. Each step asserts that every key in sight of its rows is that of the request itself.
"""

import json
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.replay import replay
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.schedule.sequence import Sequence

pytestmark = pytest.mark.thorough

MAX_LENGTH = 48
GARBAGE = ("garbage",)
WINDOWS = [(None,), (5,), (None, 5), (None, 5, 16), (16, 1)]


class Device:
    """Keys by group, page and place, and the last draw of each slot."""

    def __init__(self, limits):
        self.limits = limits
        self.keys = {}
        self.draws = {}

    def run(self, plan, tables, truths, *, fails=False):
        """Runs a step. `truths` has namespace and tokens of each request, draws included."""
        before = dict(self.keys)
        for row in plan.rows:
            namespace, tokens = truths[row.request_id]
            for position in range(row.start, row.start + row.count):
                key = GARBAGE if fails else (namespace, tuple(tokens[: position + 1]))
                for group in range(len(self.limits.groups)):
                    self.keys[self._place(tables, group, row.slot, position)] = key
        for row in plan.rows:
            self._check_reads(row, tables, before, *truths[row.request_id], fails=fails)

    def _place(self, tables, group, slot, position):
        block, place = divmod(position, self.limits.page_size)
        page = int(tables[group, slot, block])
        assert 0 <= page < self.limits.groups[group].pages
        return group, page, place

    def _check_reads(self, row, tables, before, namespace, tokens, *, fails):
        end = row.start + row.count
        for group, pages in enumerate(self.limits.groups):
            window = pages.window or MAX_LENGTH + 1
            for position in range(max(0, row.start - window + 1), end):
                place = self._place(tables, group, row.slot, position)
                key = (namespace, tuple(tokens[: position + 1]))
                if position < row.start:
                    # Written by an earlier step, and not overwritten by this one.
                    assert before[place] == key
                assert self.keys[place] == (GARBAGE if fails and position >= row.start else key)


class Machine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 4, 8]),
        windows=st.sampled_from(WINDOWS),
        step_tokens=st.sampled_from([2, 7, 17]),
        max_rows=st.sampled_from([1, 4, 4]),
        spare=st.sampled_from([0, 1, 2, 5, 100]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        ahead=st.sampled_from([0, 1, 1, 2]),
        prefill_tokens=st.sampled_from([None, None, 1, 3]),
        seed=st.integers(0, 2**16),
    )
    def start(
        self,
        page_size,
        windows,
        step_tokens,
        max_rows,
        spare,
        prefix_cache,
        ahead,
        prefill_tokens,
        seed,
    ):
        def limits(pages):
            return Limits(
                page_size=page_size,
                step_tokens=step_tokens,
                max_rows=max_rows,
                max_length=MAX_LENGTH,
                groups=tuple(Group(window=w, pages=n) for w, n in zip(windows, pages, strict=True)),
                prefix_cache=prefix_cache,
                prefill_tokens=prefill_tokens,
            )

        least = [limits([0] * len(windows)).least_pages(w) for w in windows]
        self.limits = limits([n + spare for n in least])
        self.log = []
        self.scheduler = Scheduler(self.limits, record=lambda event: self.log.append(event))
        self.device = Device(self.limits)
        self.random = random.Random(seed)
        self.ahead = ahead
        self.alive = {}  # request id: its sequence
        self.truths = {}  # request id: namespace, tokens with those the scheduler does not know
        self.places = {}  # request id: number of computed tokens while it runs
        self.in_flight = []  # draws of each step: (request id, number of resets, token)
        self.resets = {}
        self.next_id = 0
        self.namespace = b"0"
        self.idle = 0  # plans in which the oldest request got no row

    # Calls of an engine

    @rule(
        shared=st.integers(0, 40),
        branch=st.integers(0, 2),
        own=st.integers(0, 6),
        outputs=st.integers(0, 24),
        read_prefix=st.sampled_from([True, True, True, False]),
        copies=st.sampled_from([1, 1, 3]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def add(self, shared, branch, own, outputs, read_prefix, copies, priority):
        pattern = random.Random(branch)
        ids = [pattern.randrange(1, 9) for _ in range(shared)]
        ids += [self.random.randrange(1, 9) for _ in range(own)]
        ids = ids[: MAX_LENGTH - 1] or [1]
        for _ in range(copies):
            sequence = Sequence(
                request_id=self.next_id,
                ids=list(ids),
                prompt_length=len(ids),
                max_total=min(MAX_LENGTH, len(ids) + outputs),
                namespace=self.namespace,
                read_prefix=read_prefix,
                priority=priority,
            )
            self.scheduler.add(sequence)
            self.alive[self.next_id] = sequence
            self.truths[self.next_id] = (self.namespace, list(ids))
            self.resets[self.next_id] = 0
            self.next_id += 1

    @rule(count=st.integers(2, 5))
    def add_short(self, count):
        """Adds requests whose outputs need most of the pages, so that some are preempted."""
        for _ in range(count):
            self.add(0, 0, 3, 30, True, 1, 0)

    @rule(steps=st.integers(1, 12))
    def step(self, steps):
        for _ in range(steps):
            plan = self.plan()
            self.in_flight.append(self.draws(plan) if plan else [])
            while len(self.in_flight) > self.ahead:
                self.deliver()

    @precondition(lambda self: self.in_flight)
    @rule()
    def deliver(self):
        for request_id, resets, token in self.in_flight.pop(0):
            if self.resets.get(request_id, resets) != resets:
                continue  # an engine drops the draws of a request that it has reset
            known = request_id in self.alive
            if token is not None:
                assert self.scheduler.sampled(request_id, token) == known
            if known:
                sequence = self.alive[request_id]
                assert sequence.ids == self.truths[request_id][1][: len(sequence.ids)]
                if token in (None, 0) or len(sequence.ids) == sequence.max_total:
                    self.finish(request_id)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data):
        self.finish(data.draw(st.sampled_from(sorted(self.alive))))

    @precondition(lambda self: self.alive)
    @rule()
    def fail(self):
        """A step fails: its pages hold garbage, its draws never come."""
        plan = self.plan(fails=True)
        while self.in_flight:
            self.deliver()
        ids = [row.request_id for row in plan.rows if row.request_id in self.alive] if plan else []
        self.reset(ids)
        self.scheduler.drop_cache()

    @rule()
    def drop_cache(self):
        self.scheduler.drop_cache()
        assert all(counts.cached == 0 for counts in self.scheduler.pages())

    @rule(drops=st.booleans())
    def update_weights(self, drops):
        while self.in_flight:
            self.deliver()
        self.reset(None)
        assert self.scheduler.running == 0
        self.namespace = str(self.next_id).encode()
        for request_id in self.alive:
            self.scheduler.rename(request_id, self.namespace)
            self.truths[request_id] = (self.namespace, self.truths[request_id][1])
        if drops:
            self.scheduler.drop_cache()
            self.check_all_free()

    # What the engine keeps

    def reset(self, ids):
        self.scheduler.reset(ids)
        for request_id in list(self.alive) if ids is None else ids:
            self.resets[request_id] += 1
            self.places.pop(request_id, None)
            namespace, tokens = self.truths[request_id]
            self.truths[request_id] = (namespace, tokens[: len(self.alive[request_id].ids)])

    def finish(self, request_id):
        assert self.scheduler.finish(request_id)
        assert not self.scheduler.finish(request_id)
        del self.alive[request_id]
        del self.truths[request_id]
        self.places.pop(request_id, None)

    def plan(self, *, fails=False):
        ready = [i for i, s in self.alive.items() if not s.ended and s.computed < s.total]
        waiting = {i for i, s in self.alive.items() if s.slot is None}
        running = [i for i in ready if i not in waiting]
        plan = self.scheduler.plan()
        if plan is None:
            # Every request has ended but for results that are on their way.
            assert not ready or any(self.in_flight)
            return None
        assert plan.tokens <= self.limits.step_tokens
        self.check_cap(plan)
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        for request_id in plan.preempted:
            del self.places[request_id]
            assert self.alive[request_id].slot is None
            assert self.alive[request_id].computed == 0
        for row in plan.rows:
            assert row.request_id in ready
            self.check_row(row, waiting)
        self.device.run(plan, self.scheduler.tables, self.truths, fails=fails)
        self.check_progress(plan, running)
        return plan

    def check_row(self, row, waiting):
        sequence = self.alive[row.request_id]
        total = len(self.truths[row.request_id][1])
        end = row.start + row.count
        assert row.admitted == (row.request_id in waiting)
        if row.admitted:
            assert not (row.start and not self.limits.prefix_cache)
            assert not (row.start and not sequence.read_prefix)
            assert row.start % self.limits.page_size == 0
        else:
            assert row.start == self.places[row.request_id]
        assert row.start < end <= total
        assert row.samples == (end == total < sequence.max_total)
        if end > len(sequence.ids):  # reads what the last step of its slot drew
            assert row.count == 1
            assert self.device.draws[row.slot] == (row.request_id, row.start)
        self.places[row.request_id] = end
        for group, pages in zip(self.limits.groups, sequence.pages, strict=True):
            assert len(pages) <= self.limits.least_pages(group.window)
        for group, table in zip(self.limits.groups, self.scheduler.tables, strict=True):
            behind = 0 if group.window is None else max(0, row.start - group.window + 1)
            columns = table[row.slot]
            assert not columns[: behind // self.limits.page_size].any()
            assert not columns[-(-end // self.limits.page_size) :].any()

    def order(self, request_id):
        return self.alive[request_id].priority, request_id

    def check_cap(self, plan):
        """No step in which requests decode reads more tokens of prompts than it may."""
        prefill = decodes = 0
        for row in plan.rows:
            inside = row.start < self.alive[row.request_id].prompt_length
            if row.count > 1 or row.admitted or inside:
                prefill += row.count
            else:
                decodes += 1
        if decodes and self.limits.prefill_tokens is not None:
            assert prefill <= self.limits.prefill_tokens

    def check_progress(self, plan, running):
        served = {row.request_id for row in plan.rows}
        # Only the youngest may miss a step, if there are no pages for it; beside decoding requests
        # a cap may leave a prefill nothing.
        kept = sorted((i for i in running if i not in plan.preempted), key=self.order)
        if self.limits.prefill_tokens is None:
            assert served >= set(kept[:-1])
        admitted = [row.request_id for row in plan.rows if row.admitted]
        if admitted:
            assert served >= set(kept)
        for victim in plan.preempted:  # by one that runs and is older, or by a lower number
            older = [i for i in served if self.order(i) < self.order(victim)]
            assert older
            if admitted:
                first = min(admitted, key=self.order)
                assert self.alive[first].priority < self.alive[victim].priority
        self.idle = 0 if min(self.alive, key=self.order) in served else self.idle + 1
        assert self.idle <= self.limits.max_rows * MAX_LENGTH

    def draws(self, plan):
        draws = []
        for row in plan.rows:
            sequence = self.alive[row.request_id]
            _, tokens = self.truths[row.request_id]
            token = None
            if row.samples:
                token = self.random.randrange(9) if self.random.random() < 0.5 else 1
                tokens.append(token)
                self.device.draws[row.slot] = (row.request_id, len(tokens) - 1)
            if row.samples or len(tokens) == sequence.max_total == sequence.prompt_length == (
                row.start + row.count
            ):
                draws.append((row.request_id, self.resets[row.request_id], token))
        return draws

    # After each call

    def check_all_free(self):
        for counts, group in zip(self.scheduler.pages(), self.limits.groups, strict=True):
            assert counts == (0, 0, group.pages)

    @invariant()
    def counts_are_those_of_the_owners(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        assert self.scheduler.running + self.scheduler.waiting == len(self.alive)
        if self.scheduler.running == 0:
            assert all(counts.used == 0 for counts in self.scheduler.pages())
            assert not self.scheduler.tables.any()

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.alive:
                break
            self.step(1)
        assert not self.alive
        self.counts_are_those_of_the_owners()
        self.scheduler.drop_cache()
        self.check_all_free()
        again = replay(json.dumps(event) for event in self.log)
        assert again.counters == self.scheduler.counters


@pytest.mark.parametrize(
    "examples", [pytest.param(20), pytest.param(500, marks=pytest.mark.slow)], ids=str
)
def test_any_calls_leave_every_request_its_own_keys(examples):
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )
