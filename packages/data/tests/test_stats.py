# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data.batching.stats import Meter


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


def test_fill_is_that_of_the_delivered_slots():
    meter = Meter(Clock())
    meter.delivered({"segment_ids": np.array([[1, 2, 0], [1, 0, 0]]), "mask": np.ones((2, 3))})
    meter.delivered({"segment_ids": np.array([[1, 1, 1], [1, 1, 1]])})
    assert meter.stats().fill == 9 / 12
    images = Meter(Clock())
    images.delivered({"images": np.zeros((3, 2, 2)), "mask": np.array([1.0, 1, 0])})
    assert images.stats(rows={"a": 3}).fill == 2 / 3
    assert images.stats(rows={"a": 3}).rows == {"a": 3}
