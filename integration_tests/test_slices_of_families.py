# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The step of two families on two slices: collectives along data cross them, and no others do."""

import json
from pathlib import Path

import pytest

import forced_devices
import warm_start

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).parent / "programs" / "two_slices.py"
# A mixture sorts the tokens of the whole batch by expert, so each device gathers the choices.
CROSSING = {"llama": {"all-reduce"}, "mixtral": {"all-reduce", "all-gather"}}


@pytest.mark.parametrize("family", CROSSING)
def test_collectives_of_other_axes_stay_within_a_slice(family):
    done = warm_start.run([PROGRAM, family], env=forced_devices.environment(8))
    assert done.returncode == 0, done.stderr[-3000:]
    found = [
        (kind, tuple(map(tuple, groups)), far) for kind, groups, far in json.loads(done.stdout)
    ]
    # Devices are numbered by (data, fsdp, tensor), and the first four are a slice.
    across = [(kind, groups) for kind, groups, far in found if far]
    assert {kind for kind, _ in across} == CROSSING[family]
    along_data = [
        {(device + 4) % 8 for device in group} == set(group) for _, g in across for group in g
    ]
    assert all(along_data)
    within = [group for _, groups, far in found if not far for group in groups]
    assert within
    assert all(len({device // 4 for device in group}) == 1 for group in within)
    assert all(len(group) > 1 for _, groups, _ in found for group in groups)
