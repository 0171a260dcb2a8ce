# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import signal

import pytest

from dovetail_checkpoint.stopping import actions, preemption


def test_without_processes_there_is_no_service():
    assert not preemption.listens(actions.current(signal.SIGTERM))
    assert not preemption.reached()


@pytest.mark.parametrize(
    "scenario", ["term", *(pytest.param(s, marks=pytest.mark.slow) for s in ("int", "early"))]
)
def test_two_processes_stop_at_one_step_by_the_service(run_program, scenario):
    lines = sorted(run_program("preempt.py", scenario).splitlines())
    zero, one = (line.split(" stops at step ") for line in lines if "stops at" in line)
    assert (zero[0], one[0]) == ("0", "1")
    assert zero[1] == one[1]


@pytest.mark.slow
def test_without_the_service_they_agree_by_a_collective(run_program):
    lines = run_program("preempt.py", "off").splitlines()
    assert {"0 stops at step 1003", "1 stops at step 1003"} <= set(lines)
