# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The queue under a simulated clock: order, bounds, deadlines, delay, division."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.errors import QueueFull, RequestError
from dovetail_serve.serving.queue import Queue, Request


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A request of the simulation. `cancel_after` is infinite for one that is not cancelled."""

    at: float
    rows: int
    priority: int
    deadline_after: float
    cancel_after: float


# Times are multiples of 1/4 and durations too, so that sums of them are exact in floating point.
QUARTERS = st.integers(0, 40).map(lambda n: n / 4)
ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at=QUARTERS,
        rows=st.integers(1, 11),
        priority=st.integers(0, 1),
        deadline_after=st.one_of(st.just(math.inf), st.integers(1, 40).map(lambda n: n / 4)),
        cancel_after=st.one_of(st.just(math.inf), QUARTERS),
    ),
    max_size=14,
)


class Simulation:
    """Serves arrivals from a queue with a clock of its own, and checks each step.

    `served` lists (request, row) in order. Times at which something may happen are steps of 1/4.
    """

    def __init__(self, arrivals, queue, *, max_batch, delay, limit, split, batch_s):
        self.arrivals = sorted(arrivals, key=lambda arrival: arrival.at)
        self.queue, self.max_batch, self.delay = queue, max_batch, delay
        self.limit, self.split, self.batch_s = limit, split, batch_s
        self.served, self.expired, self.cancelled, self.refused = [], set(), set(), set()
        self.requests: dict[int, Request] = {}
        self.busy_until = -math.inf

    def run(self):
        for step in range(4 * 120):
            now = step / 4
            self._arrive(now)
            self._cancel(now)
            self.expired |= {request.payload for request in self.queue.expire(now)}
            if now >= self.busy_until:
                self._serve(now)
        assert len(self.queue) == 0
        assert self.queue.rows == 0

    def _waiting(self):
        """Returns numbers of the requests that wait, worked out from the other records."""
        gone = self.expired | self.cancelled
        rows = [i for i, _ in self.served]
        return [i for i, r in self.requests.items() if i not in gone and rows.count(i) < r.rows]

    def _arrive(self, now):
        for i, arrival in enumerate(self.arrivals):
            if arrival.at != now:
                continue
            deadline = now + arrival.deadline_after
            request = Request(arrival.rows, arrival.priority, deadline, i)
            full = len(self._waiting()) >= self.limit
            whole = not self.split and arrival.rows > self.max_batch
            if full or whole:
                with pytest.raises(RequestError if whole else QueueFull):
                    self.queue.add(request, now)
                self.refused.add(i)
            else:
                self.queue.add(request, now)
                self.requests[i] = request
            assert len(self.queue) == len(self._waiting()) <= self.limit

    def _cancel(self, now):
        for i, request in self.requests.items():
            if now == self.arrivals[i].at + self.arrivals[i].cancel_after:
                if i in self._waiting():
                    self.cancelled.add(i)
                self.queue.cancel(request)

    def _serve(self, now):
        batch = self.queue.next(now)
        waiting = self._waiting()
        if batch is None:
            assert not waiting
            return
        if isinstance(batch, float):
            assert self.delay
            assert now < batch <= min(self.arrivals[i].at for i in waiting) + self.delay
            return
        assert 0 < sum(stop - start for _, start, stop in batch) <= self.max_batch
        for request, start, stop in batch:
            i = request.payload
            assert i in waiting
            assert now < request.deadline
            assert start == sum(1 for j, _ in self.served if j == i)
            self.served += [(i, row) for row in range(start, stop)]
        self.busy_until = now + self.batch_s


@pytest.mark.thorough
@given(
    arrivals=ARRIVALS,
    max_batch=st.integers(1, 8),
    delay=st.sampled_from([0.0, 0.0, 1.5, 4.0]),
    limit=st.integers(1, 6),
    split=st.booleans(),
    batch_s=st.integers(1, 8).map(lambda n: n / 4),
)
@settings(max_examples=250, deadline=None)
@pytest.mark.capability("batching of requests")
def test_each_row_runs_once_in_order_or_has_a_reason(
    arrivals, max_batch, delay, limit, split, batch_s
):
    queue = Queue(max_batch=max_batch, max_delay_s=delay, limit=limit, split=split, priorities=2)
    simulation = Simulation(
        arrivals,
        queue,
        max_batch=max_batch,
        delay=delay,
        limit=limit,
        split=split,
        batch_s=batch_s,
    )
    simulation.run()
    assert len(set(simulation.served)) == len(simulation.served)
    stopped = simulation.expired | simulation.cancelled
    for i, request in simulation.requests.items():
        rows = [row for j, row in simulation.served if j == i]
        assert rows == list(range(len(rows)))
        assert (len(rows) == request.rows) != (i in stopped)
    for level in (0, 1):
        firsts = [i for i, row in simulation.served if row == 0]
        starts = [i for i in firsts if simulation.arrivals[i].priority == level]
        assert starts == sorted(starts)


def batches(queue, sizes):
    """Adds requests of these numbers of rows. Returns number, start and stop of each slice."""
    for i, rows in enumerate(sizes):
        queue.add(Request(rows, payload=i), 0.0)
    found = []
    while batch := queue.next(1.0):
        found.append([(r.payload, start, stop) for r, start, stop in batch])
    return found


def test_batches_are_full_and_requests_divided_in_order():
    assert batches(Queue(max_batch=8), (5, 19, 2)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(1, 3, 11)],
        [(2, 0, 2), (1, 11, 17)],
        [(1, 17, 19)],
    ]


def test_a_request_of_many_rows_takes_turns():
    assert batches(Queue(max_batch=4), (1, 11, 1, 5)) == [
        [(0, 0, 1), (1, 0, 3)],
        [(1, 3, 7)],
        [(2, 0, 1), (3, 0, 3)],
        [(3, 3, 5), (1, 7, 9)],
        [(1, 9, 11)],
    ]


@pytest.mark.thorough
@given(rows=st.lists(st.integers(1, 30), min_size=1, max_size=12), max_batch=st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_a_request_waits_for_less_than_two_batches_of_each_other_one(rows, max_batch):
    """All arrive at once. `order` has the request of each row that ran."""
    queue, order = Queue(max_batch=max_batch), []
    for i, count in enumerate(rows):
        queue.add(Request(count, payload=i), 0.0)
    while batch := queue.next(0.0):
        assert sum(stop - start for _, start, stop in batch) == min(
            max_batch, sum(rows) - len(order)
        )
        order += [r.payload for r, start, stop in batch for _ in range(start, stop)]
    for i, count in enumerate(rows):
        last = max(place for place, j in enumerate(order) if j == i)
        if count <= max_batch:
            before = [order[:last].count(j) for j in range(len(rows)) if j != i]
            assert max(before, default=0) < 2 * max_batch
            assert last < sum(rows[: i + 1])  # as first in, first out


def test_a_request_of_many_rows_ends_though_others_always_wait():
    """Each batch is followed by as many new requests, so that 12 rows of others always wait."""
    queue = Queue(max_batch=4)
    for _ in range(12):
        queue.add(Request(1), 0.0)
    large = Request(40)
    queue.add(large, 0.0)
    batches = 0
    while large.begun < large.rows:
        batch = queue.next(0.0)
        assert isinstance(batch, list)
        batches += 1
        for request, _, _ in batch:
            if request is not large:
                queue.add(Request(1), 0.0)
    # Ten turns, each after at most three batches of others and in at most two.
    assert batches <= 10 * 5


def test_whole_requests_are_not_divided_nor_overtaken():
    queue = Queue(max_batch=8, split=False)
    for i, rows in enumerate((5, 6, 2)):
        queue.add(Request(rows, payload=i), 0.0)
    batches = []
    while batch := queue.next(1.0):
        batches.append([r.payload for r, _, _ in batch])
    assert batches == [[0], [1, 2]]


def test_a_lower_level_waits_for_those_before_it():
    queue = Queue(max_batch=2, priorities=3)
    for i, priority in enumerate((2, 1, 0, 1, 0)):
        queue.add(Request(1, priority, payload=i), float(i))
    order = []
    while batch := queue.next(9.0):
        order += [r.payload for r, _, _ in batch]
    assert order == [2, 4, 1, 3, 0]


def test_the_delay_counts_from_the_oldest_arrival():
    queue = Queue(max_batch=4, max_delay_s=2.0)
    queue.add(Request(1), 10.0)
    queue.add(Request(1), 11.5)
    assert queue.next(11.5) == 12.0
    batch = queue.next(12.0)
    assert isinstance(batch, list)
    assert len(batch) == 2
    # These arrived while the model was busy. When it is idle again their delay is over.
    queue.add(Request(1), 12.5)
    assert isinstance(queue.next(14.5), list)


def test_a_full_batch_ends_the_delay():
    queue = Queue(max_batch=4, max_delay_s=2.0)
    queue.add(Request(3), 10.0)
    assert queue.next(10.0) == 12.0
    queue.add(Request(1), 10.5)
    assert isinstance(queue.next(10.5), list)


def test_a_deadline_ends_the_delay_in_time_for_a_batch():
    queue = Queue(max_batch=4, max_delay_s=2.0, batch_s=0.25)
    queue.add(Request(1, deadline=11.0), 10.0)
    assert queue.next(10.0) == 10.75
    assert isinstance(queue.next(10.75), list)


def test_close_ends_the_delay():
    queue = Queue(max_batch=4, max_delay_s=2.0)
    queue.add(Request(1), 10.0)
    queue.close()
    assert isinstance(queue.next(10.0), list)


def test_expired_requests_neither_run_nor_shorten_the_delay():
    queue = Queue(max_batch=2, max_delay_s=2.0)
    queue.add(Request(1, deadline=11.0, payload="late"), 10.0)
    assert queue.next(11.0) is None
    queue.add(Request(1, payload="good"), 11.5)
    assert queue.next(11.5) == 13.5
    batch = queue.next(13.5)
    assert isinstance(batch, list)
    assert [r.payload for r, _, _ in batch] == ["good"]
    assert [r.payload for r in queue.expire(13.5)] == ["late"]
    assert queue.expire(14.0) == []


def test_a_full_queue_says_when_to_come_again():
    queue = Queue(max_batch=4, limit=3, batch_s=1.0)
    for rows in (4, 9, 1):
        queue.add(Request(rows), 0.0)
    with pytest.raises(QueueFull) as error:
        queue.add(Request(1), 0.0)
    assert error.value.retry_after_s == 4.0  # 14 rows are 4 batches of 1 s
    for text in ("at most 3 requests", "queued=3", "Batching(queue=...)"):
        assert text in str(error.value)
    for _ in range(60):
        queue.finished(0.5)
    with pytest.raises(QueueFull) as error:
        queue.add(Request(1), 0.0)
    # The average of 60 batches is within 0.8**60 of 0.5 s.
    assert error.value.retry_after_s == pytest.approx(2.0, rel=1e-4)


@pytest.mark.thorough
def test_four_times_the_capacity_bounds_the_wait_and_keeps_the_model_busy():
    """Batches of 8 rows take 1 s. Requests of 1 row arrive at random, 32 a second."""
    limit, rows = 24, 8
    queue = Queue(max_batch=rows, limit=limit, batch_s=1.0)
    arrivals = np.cumsum(np.random.default_rng(4).exponential(1 / (4 * rows), 4000))
    waits, hints, idle_at = [], [], 0.0
    for now in arrivals:
        while idle_at <= now and (batch := queue.next(idle_at)):
            waits += [idle_at + 1.0 - request.arrival for request, _, _ in batch]
            idle_at += 1.0
            queue.finished(1.0)
        idle_at = max(idle_at, now) if not len(queue) else idle_at
        try:
            queue.add(Request(1), now)
        except QueueFull as error:
            hints.append(error.retry_after_s)
    # The rest of the batch that runs, and the batches of a full queue.
    assert max(waits) <= 1.0 + limit / rows
    assert max(arrivals[-1] - request.arrival for request in queue) <= 1.0 + limit / rows
    # All seconds but the first few have a full batch.
    assert len(waits) == pytest.approx(rows * arrivals[-1], rel=0.05)
    assert len(hints) > 0.7 * len(arrivals)
    assert hints == pytest.approx([limit / rows] * len(hints))


@pytest.mark.parametrize("priority", [-1, 2])
def test_unknown_levels_are_refused(priority):
    with pytest.raises(RequestError) as error:
        Queue(max_batch=4, priorities=2).add(Request(1, priority), 0.0)
    for text in ("from 0 to 1", f"priority={priority}", "write priority=0"):
        assert text in str(error.value)


def test_a_large_request_that_may_not_be_divided_is_refused():
    queue = Queue(max_batch=4, split=False)
    with pytest.raises(RequestError) as error:
        queue.add(Request(5), 0.0)
    for text in ("at most 4 rows", "rows=5", "Batching(split=True)"):
        assert text in str(error.value)
    assert len(queue) == 0


def test_cancel_keeps_the_rows_that_have_begun():
    queue = Queue(max_batch=4)
    divided, other = Request(6), Request(1)
    queue.add(divided, 0.0)
    queue.add(other, 0.0)
    queue.next(0.0)
    assert (len(queue), queue.rows) == (2, 3)
    queue.cancel(divided)
    queue.cancel(divided)
    assert (len(queue), queue.rows, list(queue)) == (1, 1, [other])
