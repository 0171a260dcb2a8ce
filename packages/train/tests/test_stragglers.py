# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of the slowest process. Two real ones are in integration_tests/test_causes.py."""

import pytest

from dovetail_train._stragglers import straggler


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
