# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of faults: seeded, even among kinds, and within the steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_cluster.fault_plan import KINDS, plan_faults


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32))
def test_plans_are_seeded_and_even(faults, hosts, seed):
    steps = range(5, 100)
    plan = plan_faults(steps, hosts=hosts, faults=faults, seed=seed)
    assert plan == plan_faults(steps, hosts=hosts, faults=faults, seed=seed)
    assert [fault.number for fault in plan] == list(range(faults))
    assert [fault.step for fault in plan] == sorted({fault.step for fault in plan})
    assert all(fault.step in steps[:71] and 0 <= fault.host < hosts for fault in plan)
    counts = [sum(fault.kind == kind for fault in plan) for kind in KINDS]
    assert max(counts) - min(counts) <= 1


def test_plans_differ_by_seed():
    plans = {tuple(plan_faults(range(99), hosts=3, faults=9, seed=seed)) for seed in range(20)}
    assert len(plans) == 20


def test_too_few_steps_are_named():
    with pytest.raises(ValueError, match=r"more than 4 steps for faults=3, got 3; .*faults=2"):
        plan_faults([1, 2, 3], hosts=1, faults=3, seed=0)
