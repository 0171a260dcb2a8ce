# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of the slowest process.

Real ones are in test_processes.py and in integration_tests/test_causes.py.
"""

import pytest

from dovetail_train.loop.stragglers import paces, straggler, updates_until_next


def account(**seconds):
    rest = 100.0 - sum(seconds.values())
    return dict.fromkeys(("init", "data", "stall", "draw", "hooks", "save"), 0.0) | {
        **seconds,
        "step": rest,
    }


@pytest.mark.capability("the process that the others wait for is named")
@pytest.mark.parametrize(
    "accounts, expected",
    (
        # A process that is five times slower in its data, in its hooks, elsewhere.
        ([account(data=10.0), account(data=50.0), account(data=10.0)], (1, "data", 50.0, 10.0)),
        ([account(), account(hooks=40.0)], (1, "hooks", 40.0, 0.0)),
        ([account(stall=40.0), account(hooks=2.0), account()], (0, "stall", 40.0, 0.0)),
        ([account(data=50.0), account(data=12.0, draw=48.0)], (1, "draw", 48.0, 0.0)),
        # All wait for their data; a save and the first steps, where they wait for each other.
        ([account(data=50.0), account(data=55.0)], None),
        ([account(save=50.0), account()], None),
        ([account(init=50.0), account()], None),
        ([account(data=9.0), account()], None),  # not worth a word
        ([account(data=30.0), account(data=16.0)], None),  # less than twice as slow
    ),
)
def test_straggler(accounts, expected):
    assert straggler(accounts) == expected


@pytest.mark.capability("the process with slow devices is named")
@pytest.mark.parametrize(
    "accounts, probed_ms, expected",
    (
        # Five times slower devices: in 90 s of steps, those of the others would need 18 s.
        ([account(data=10.0)] * 3, ([20] * 8, [22] * 8, [100] * 8), (2, "devices", 90.0, 18.9)),
        ([account()] * 2, ([100] * 8, [20] * 8), (0, "devices", 100.0, 20.0)),
        # Stopped in four fifths of the time, which a short computation may miss.
        ([account()] * 2, ([20] * 8, [20, 100, 100, 20] * 2), (1, "devices", 100.0, 36.842)),
        # One or two of the others are hardly slower; one slow time, whoever has it.
        ([account()] * 3, ([20] * 8, [30] * 8, [35] * 8), None),
        ([account()] * 3, ([20] * 8, [20] * 7 + [5000], [20] * 8), None),
        ([account()] * 3, ([20] * 7, [20] * 7, [100] * 7), None),  # too few times
        # Both causes: the one that costs more. Slow devices cost nothing if steps are rare.
        ([account(data=60.0), account()], ([100] * 8, [20] * 8), (0, "data", 60.0, 0.0)),
        ([account(data=30.0), account()], ([100] * 8, [20] * 8), (0, "devices", 70.0, 20.0)),
        ([account(data=95.0)] * 2, ([100] * 8, [20] * 8), None),
    ),
)
def test_slow_devices(accounts, probed_ms, expected):
    slowest = straggler(accounts, paces([[ms / 1000 for ms in own] for own in probed_ms]))
    if expected is None:
        assert slowest is None
    else:
        assert slowest[:2] == expected[:2]
        assert slowest[2:] == pytest.approx(expected[2:], rel=1e-4)


def test_comparisons_are_ten_seconds_apart_and_closer_at_first():
    step_s, compile_s = 0.25, 7.0
    times = [(1, compile_s)]
    while times[-1][1] < 100:
        step = times[-1][0] + updates_until_next(times)
        times.append((step, compile_s + (step - 1) * step_s))
    seconds = [time_s - compile_s for _, time_s in times]
    assert seconds[:10] == [0, 0.25, 1.25, 2.25, 3.5, 5.25, 8, 12, 18, 27]
    assert seconds[-3:] == [77, 87, 97]
    assert updates_until_next([(1, 7.0), (2, 67.0)]) == 1  # a step of a minute
