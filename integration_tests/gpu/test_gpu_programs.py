# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hot programs as XLA compiles them for a GPU that is not here. The bounds only fall.

A launch costs about 3 us and a wait for the host about 40 us (one H100, jax 0.11.2), and neither is
anybody's work. `python integration_tests/programs/gpu_programs.py NAME`, with the folder `scripts`
on the path, prints the counts of today.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from dovetail_cluster import Compiled, compiled, devices

pytestmark = [pytest.mark.gpu, pytest.mark.thorough]

PROGRAMS = Path(__file__).parent.parent / "programs"
WEIGHTS = 4096 * 14336  # elements of the linear layers


class Bounds(NamedTuple):
    """Launches, waits for the host, and GB moved outside of products, of one call."""

    launches: int
    host_syncs: int
    gb: float


BOUNDS = {
    # One loop over tiles of tokens with three products each.
    "loss": Bounds(77, 0, 20.8),
    "loss of tied weights": Bounds(145, 0, 23.8),
    "attention": Bounds(2, 0, 0.0),
    # Both branches count: cuDNN's, and that of the kernel for ids that are in no runs.
    "attention, packed": Bounds(333, 18, 4.3),
    "grouped": Bounds(11, 0, 0.1),
    "grouped, gradients": Bounds(12, 0, 0.14),
    "paged": Bounds(8, 0, 0.004),
    "linear, 1 row": Bounds(2, 0, 0.001),
    "linear, 8 rows": Bounds(2, 0, 0.0022),
    "linear, 64 rows": Bounds(2, 0, 0.01),
    "linear by groups, 8 rows": Bounds(2, 0, 0.016),
    # 16 layers.
    "engine, 2 rows": Bounds(206, 0, 0.0145),
    "engine, 8 rows": Bounds(207, 0, 0.058),
    "engine, 64 rows": Bounds(192, 0, 0.52),
    "engine, 64 rows drawn": Bounds(261, 0, 1.74),
    "train 124M": Bounds(1375, 0, 65.5),
    "train 1.2B": Bounds(1837, 0, 171.6),
}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch):
    """Compiles a program by its name; the process that compiles finds the module, too."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import gpu_programs

    assert gpu_programs.PROGRAMS.keys() == BOUNDS.keys()
    return lambda name: compiled(gpu_programs.PROGRAMS[name], target=devices("NVIDIA H200"))


@pytest.mark.parametrize("name", BOUNDS)
def test_a_program_launches_waits_and_moves_no_more_than_it_did(read, name: str):
    program: Compiled = read(name)
    assert program.fits, program.reason
    assert program.bytes_outside_products is not None
    had = Bounds(program.launches, program.host_syncs, program.bytes_outside_products / 1e9)
    assert all(a <= b for a, b in zip(had, BOUNDS[name], strict=True)), f"{had}\n{program}"
    if "linear" in name or "engine" in name:
        # Neither codes nor other weights are written in a wider dtype before their product.
        assert not [copy for copy in program.widest_copies if copy.bytes >= WEIGHTS]
