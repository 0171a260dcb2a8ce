# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_train.clock import Clock, Rates, Throughput


class _Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_activities_sum_to_the_wall_time():
    time = _Time()
    clock = Clock(time)
    for activity, seconds in [("compile", 1), ("step", 2), ("save", 4), ("step", 8), ("hooks", 16)]:
        time.now += seconds  # ends the activity before
        clock.enter(activity)
    time.now += 32
    seconds = clock.seconds()
    expected = {"init": 1, "compile": 2, "step": 4 + 16, "hooks": 32, "save": 8}
    assert seconds == {"data": 0, "draw": 0, "skipped": 0, **expected}
    assert sum(seconds.values()) == time.now - 100
    assert clock.goodput() == pytest.approx(20 / 63)


def test_a_fetch_that_left_the_device_idle_is_charged_to_data():
    time = _Time()
    clock = Clock(time)
    clock.enter("step")
    time.now += 3
    clock.charge("data")
    time.now += 5
    assert clock.seconds()["data"] == 3
    assert clock.seconds()["step"] == 5


def test_the_account_goes_on_after_a_restart():
    time = _Time()
    before, after = Clock(time), Clock(time)
    time.now += 7
    saved = before.get_state()
    after.set_state(saved)
    assert after.seconds()["init"] == 7 + 7


def test_a_step_takes_the_distance_between_results():
    time = _Time()
    rate = Throughput(Rates(flops=40.0, recomputed=10.0, peak_flops=100.0), now=time)
    assert rate.result(tokens=12.0, rows=3) == {}  # nothing to measure from
    time.now += 2
    assert rate.result(tokens=12.0, rows=3) == {
        "step_time_s": 2.0,
        "tokens_per_s": 6.0,
        "mfu": 40.0 / 2 / 100,
        "hfu": 50.0 / 2 / 100,
    }


def test_a_compilation_has_no_step_time_and_a_save_does_not_lengthen_one():
    time = _Time()
    rate = Throughput(now=time)
    rate.result(tokens=None, rows=3)
    rate.pause()
    time.now += 50
    assert rate.result(tokens=None, rows=3) == {}
    time.now += 60  # a save
    rate.resume()
    time.now += 4
    assert rate.result(tokens=None, rows=3) == {"step_time_s": 4.0, "rows_per_s": 0.75}


@pytest.mark.parametrize("flops, peak", [(None, 1.0), (1.0, None)])
def test_without_flops_or_peak_there_is_no_mfu(flops, peak):
    time = _Time()
    rate = Throughput(Rates(flops=flops, peak_flops=peak), now=time)
    rate.resume()
    time.now += 1
    assert "mfu" not in rate.result(tokens=1.0, rows=1)


def test_the_time_of_a_skipped_step_is_lost():
    time = _Time()
    clock = Clock(time)
    clock.enter("step")
    time.now += 10
    assert clock.goodput() == 1.0
    clock.move(4.0, to="skipped")
    assert clock.goodput() == 0.6
    assert clock.seconds()["skipped"] == 4.0
