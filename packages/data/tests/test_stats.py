# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_data.stats import Meter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_waits_are_counted_after_the_first_batch():
    clock = Clock()
    meter = Meter(clock)
    for wait, work in [(5.0, 1.0), (0.5, 2.0), (1.0, 100.0)]:
        with meter.waiting():
            clock.now += wait
        clock.now += work
    stats = meter.stats()
    assert stats.batches == 3
    assert stats.wait_s == 1.5
    assert stats.total_s == 1.0 + 0.5 + 2.0 + 1.0
    assert stats.wait_fraction == pytest.approx(1.5 / 4.5)


def test_nothing_delivered_is_no_wait():
    assert Meter(Clock()).stats().wait_fraction == 0.0


def test_a_batch_that_fails_is_not_counted():
    meter = Meter(Clock())
    with pytest.raises(StopIteration), meter.waiting():
        raise StopIteration
    assert meter.stats().batches == 0
