# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rates beside the limits of a device. Times are made by hand, costs counted by hand."""

import jax
import jax.numpy as jnp
import pytest
from recorded import recorded

from dovetail_profile._compat import module_of_compiled
from dovetail_profile.peaks import Peaks
from dovetail_profile.program.module import Module
from dovetail_profile.tables.roofline import roofline

PEAKS = Peaks(
    device_kind="a device", flops_per_s={"float32": 1e9, "bfloat16": 4e9}, bytes_per_s=1e8
)
M, K, N = 24, 40, 56
FLOPS, BYTES = 2 * M * K * N, 4 * (M * K + K * N + M * N)


def program(function, *shapes: tuple[int, ...], dtype=jnp.float32) -> tuple[Module, str]:
    """A program and the name of the only instruction that does something."""
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    module = module_of_compiled(jax.jit(function).lower(*arguments).compile())
    return module, module.entry.root.name


@pytest.fixture(scope="module")
def product() -> tuple[Module, str]:
    with jax.named_scope("mlp"):
        return program(lambda x, y: jnp.dot(x, y), (M, K), (K, N))


@pytest.fixture(scope="module")
def copy() -> tuple[Module, str]:
    return program(lambda x: x.T, (M, K))


def test_a_product_below_the_roof(product):
    module, name = product
    recording = recorded({1: module}, [(1, name, 0, 300), (1, name, 300, 200)])
    (row,) = roofline(recording, PEAKS)
    assert (row.name, row.self_us, row.flops, row.bytes) == (name, 500, 2 * FLOPS, 2 * BYTES)
    assert row.source.split(":")[0].endswith("test_roofline.py")
    assert row.flop_per_byte == FLOPS / BYTES  # 6.3, left of the ridge at 10
    assert row.achieved_flops_per_s == pytest.approx(2 * FLOPS / 500e-6)
    assert row.achieved_bytes_per_s == pytest.approx(2 * BYTES / 500e-6)
    assert row.attainable_flops_per_s == pytest.approx(FLOPS / BYTES * 1e8)
    assert row.fraction == pytest.approx(2 * BYTES / 1e8 / 500e-6)
    assert row.bound == "memory"


def test_the_peak_bounds_what_has_a_high_intensity(product):
    module, name = product
    slow = Peaks(device_kind="a device", flops_per_s={"float32": 1e8}, bytes_per_s=1e8)
    (row,) = roofline(recorded({1: module}, [(1, name, 0, 2000)]), slow)
    assert (row.attainable_flops_per_s, row.bound) == (pytest.approx(1e8), "compute")
    assert row.fraction == pytest.approx(FLOPS / 1e8 / 2000e-6)


def test_a_copy_has_the_roof_of_the_memory(copy):
    module, name = copy
    (row,) = roofline(recorded({1: module}, [(1, name, 0, 100)]), PEAKS)
    assert (row.flops, row.bytes) == (0, 2 * 4 * M * K)
    assert row.fraction == pytest.approx(2 * 4 * M * K / 1e8 / 100e-6)
    assert (row.bound, row.attainable_flops_per_s) == ("memory", 0)


def test_a_scope_takes_at_least_the_times_of_its_instructions(product, copy):
    runs = [(1, product[1], 0, 500), (2, copy[1], 500, 100)]
    recording = recorded({1: product[0], 2: copy[0]}, runs)
    (row,) = roofline(recording, PEAKS, by="scope")
    assert (row.name, row.scope, row.self_us, row.flops) == ("(no scope)", "", 600, FLOPS)
    assert row.fraction == pytest.approx((BYTES + 8 * M * K) / 1e8 / 600e-6)
    rows = roofline(recording, PEAKS)
    assert rows.column("self_us") == [500, 100]


def test_the_dtype_of_products_chooses_the_peak():
    def summed(x, y):
        return jnp.dot(x, y, preferred_element_type=jnp.float32)

    module, name = program(summed, (M, K), (K, N), dtype=jnp.bfloat16)
    dot = next(x for x in module.instructions.values() if x.opcode == "dot")
    narrow = module.by_id[dot.operands[0]].shape.dtype == "bf16"  # else this CPU has no such dot
    rates = {"float32": 1e6, "bfloat16": 2e6}
    peaks = Peaks(device_kind="a device", flops_per_s=rates, bytes_per_s=1e12)
    (row,) = roofline(recorded({1: module}, [(1, name, 0, 100)]), peaks)
    assert row.attainable_flops_per_s == rates["bfloat16" if narrow else "float32"]


def test_what_is_not_known_is_none(product, copy):
    module, name = product
    recording = recorded({1: module, 2: copy[0]}, [(1, name, 0, 500), (2, copy[1], 500, 100)])
    table = roofline(recording)
    assert table.column("fraction") == table.column("bound") == [None, None]
    assert table[0].achieved_flops_per_s == pytest.approx(FLOPS / 500e-6)
    assert "measure_peaks()" in table.notes[0]
    narrow = Peaks(device_kind="a device", flops_per_s={"bfloat16": 1e9}, bytes_per_s=1e8)
    table = roofline(recording, narrow)
    assert table.notes == ("No peak is known for float32: add one to flops_per_s=.",)
    assert table.column("bound") == [None, "memory"]
    table = roofline(recorded({}, [(1, "kernel", 0, 5)]), PEAKS)
    assert (table[0].flops, table[0].fraction, table[0].bound) == (None, None, None)
    assert table.notes == ("1 of 1 instructions have no rule for their cost.",)


def test_a_recorded_program_is_listed_by_time(recording):
    table = roofline(recording, PEAKS)
    times = table.column("self_us")
    assert times == sorted(times, reverse=True)
    busy = recording.operations.self_ps.sum() / 1e6
    for by in ("op", "scope"):
        # The sum of a few dozen floats.
        assert sum(roofline(recording, by=by).column("self_us")) == pytest.approx(busy, rel=1e-12)
