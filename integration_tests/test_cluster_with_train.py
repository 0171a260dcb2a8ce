# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer's step compiled for devices that are absent."""

import collections
import json
from pathlib import Path

import pytest

import forced_devices
import warm_start
from dovetail_cluster import compiled, devices

pytestmark = pytest.mark.thorough

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def step(monkeypatch):
    """The module with the step; the process that compiles finds it, too."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import absent_step

    return absent_step


@pytest.mark.capability("a trainer's step compiled for absent devices")
def test_a_step_compiled_apart_is_the_one_of_devices_that_are_present(step):
    done = warm_start.run(
        [PROGRAMS / "absent_step.py"], env=forced_devices.environment(8, optimize=True)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    present = json.loads(done.stdout)
    program = compiled(step.build, target=devices("CPU x 8"))
    assert program.argument_bytes == present["live_bytes"]
    counts, sizes = collections.Counter(), collections.Counter()
    for kind, size in present["collectives"]:
        counts[kind] += 1
        sizes[kind] += size
    assert {k: sum(t.count for t in v) for k, v in program.collectives.items()} == counts
    assert {k: sum(t.bytes for t in v) for k, v in program.collectives.items()} == sizes
    assert program.mesh == {"fsdp": 4, "tensor": 2}
    assert program.flops > 0


@pytest.mark.tpu
@pytest.mark.capability("a trainer's step compiled for absent devices", on="tpu")
def test_a_step_is_compiled_for_a_tpu_slice(step):
    program = compiled(step.scanned, target=devices("TPU v5e:4x4"))
    assert program.fits, program.reason
    assert program.mesh == {"fsdp": 8, "tensor": 2}
    kinds = ("all-reduce", "reduce-scatter")
    sums = [t for kind in kinds for t in program.collectives[kind] if "tensor" in t.axes]
    # Of attention and feed-forward of each layer, forward and backward.
    assert sum(t.count for t in sums) >= 2 * 2 * step.DEPTH
    assert all(t.link == "ici" for each in program.collectives.values() for t in each)
    assert program.bound_s > 0
