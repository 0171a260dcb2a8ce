# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that cannot be done before their deadline, by a simulated clock."""

import math

import numpy as np
import pytest

from dovetail_serve.errors import QueueFull
from dovetail_serve.serving.queue import Queue, Request

BATCH, BATCH_S = 8, 0.02


def queue(rows, *, priorities=1, priority=0, **options):
    """A queue with waiting requests of one row."""
    filled = Queue(max_batch=BATCH, priorities=priorities, batch_s=BATCH_S, **options)
    for _ in range(rows):
        filled.add(Request(1, priority), 0.0)
    return filled


def test_a_deadline_before_the_rows_in_front_are_done_is_refused():
    """24 rows are three batches; the one that runs and its own make five: 100 ms."""
    full = queue(24)
    full.check_wait(0, 0.1001)
    with pytest.raises(QueueFull) as error:
        full.check_wait(0, 0.0999)
    assert "got 24 rows, about 100 ms, and a deadline in 100 ms; try" in str(error.value)
    assert error.value.retry_after_s == pytest.approx(0.0001)
    full.check_wait(0, math.inf)


def test_less_than_a_batch_in_front_refuses_nothing():
    queue(7).check_wait(0, 1e-6)
    with pytest.raises(QueueFull):
        queue(8).check_wait(0, 1e-6)


def test_only_rows_of_the_same_level_and_of_those_before_it_are_in_front():
    full = queue(16, priorities=3, priority=1)
    full.check_wait(0, 0.01)
    for level in (1, 2):
        with pytest.raises(QueueFull):
            full.check_wait(level, 0.01)


def test_begun_rows_are_not_in_front():
    part = Queue(max_batch=BATCH, batch_s=BATCH_S)
    part.add(Request(12), 0.0)
    part.check_wait(0, 0.0601)
    with pytest.raises(QueueFull):
        part.check_wait(0, 0.0599)
    part.next(0.0)
    part.check_wait(0, 1e-6)


@pytest.mark.parametrize("asked", [True, False])
def test_goodput_with_deadlines_at_four_times_the_capacity(asked):
    """Without the question, a queue that is longer than the deadline answers late, if at all."""
    generator = np.random.default_rng(5)
    arrivals = np.cumsum(generator.exponential(BATCH_S / BATCH / 4, size=8000))
    waiting, free_at, done, batch = queue(0, limit=256), 0.0, 0, []
    for at in arrivals:
        while free_at <= at:
            done += sum(free_at <= piece.request.deadline for piece in batch)
            waiting.expire(free_at)
            batch = waiting.next(free_at) or []
            if not batch:
                break
            free_at += BATCH_S
        free_at = max(free_at, at) if not batch else free_at
        try:
            if asked:
                waiting.check_wait(0, 0.15)
            waiting.add(Request(1, deadline=at + 0.15), at)
        except QueueFull:
            pass
    goodput = done / (arrivals[-1] * BATCH / BATCH_S)
    assert (goodput >= 0.95) == asked, goodput
