# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The time of devices by instruction, line, module path, category and program."""

import dataclasses
import time
from collections import Counter

import numpy as np
import pytest

from dovetail_profile.program.module import Module
from dovetail_profile.tables.category import category_of
from dovetail_profile.tables.memory import memory
from dovetail_profile.tables.modules import modules
from dovetail_profile.tables.ops import ops
from dovetail_profile.tables.spans import annotations
from dovetail_profile.tables.work import distinct, work_of
from dovetail_profile.trace.operations import Operations
from dovetail_profile.trace.recording import Recording

STEPS, TRIPS, DATA_US = 4, 7, 10_000  # fixtures/make.py


def with_runs(recording: Recording, runs: Operations) -> Recording:
    """The recording with other runs."""
    changed = Recording(recording.spaces, recording.hosts)
    changed.operations = runs
    return changed


def picoseconds(table) -> int:
    return sum(round(row.self_us * 1e6) for row in table)


@pytest.mark.parametrize("by", ["op", "source", "scope", "category"])
def test_every_grouping_has_all_of_the_time_and_all_calls(recording: Recording, by: str) -> None:
    table = ops(recording, by)
    assert picoseconds(table) == int(recording.operations.self_ps.sum())
    assert sum(row.calls for row in table) == sum(row.calls for row in ops(recording))
    assert sum(row.share for row in table) == pytest.approx(1, rel=1e-12)  # a sum of few floats
    assert len({row.name for row in table}) == len(table) or by == "op"
    times = table.column("self_us")
    assert times == sorted(times, reverse=True)
    flops = [row.flops for row in ops(recording)]
    assert None in flops or sum(table.column("flops")) == pytest.approx(sum(flops), rel=1e-12)


def test_a_row_has_what_the_program_says(recording: Recording) -> None:
    table = ops(recording)
    (sort,) = table.where("opcode", "sort")
    assert (sort.scope, sort.program, sort.calls) == ("sorting", "jit_tail", STEPS)
    assert sort.source.startswith("make.py:")
    runs = recording.operations
    named = runs.code == runs.names.index(sort.name)
    assert sort.self_us == runs.self_ps[named].sum() / 1e6
    (scan,) = table.where("opcode", "while")
    assert (scan.category, scan.flops, scan.bytes) == ("control", 0, 0)
    in_scan = [row for row in table if row.scope == "recurrence" and row.opcode == "fusion"]
    assert {row.calls for row in in_scan} == {TRIPS * STEPS}


def test_products_of_a_scan_have_the_flops_of_all_rounds(recording: Recording) -> None:
    batch, width = 48, 64
    products = ops(recording, "scope").where("name", "recurrence")[0]
    least = TRIPS * STEPS * 2 * 2 * batch * batch * width  # c @ c.T, then @ c
    # What is no product: tanh and the counter, a few operations for each element.
    assert products.flops is not None
    assert least <= products.flops <= least * 1.1


def test_runs_without_a_program_are_counted_and_told(recording: Recording) -> None:
    runs = recording.operations
    lost = runs.program == runs.program[0]
    other = dataclasses.replace(runs, program=np.where(lost, 999, runs.program))
    table = ops(with_runs(recording, other))
    unknown = table.where("opcode", "?")
    assert picoseconds(unknown) == int(runs.self_ps[lost].sum())
    assert picoseconds(table) == int(runs.self_ps.sum())
    row = unknown[0]
    assert (row.program, row.category, row.flops, row.bytes) == ("?", "other", None, None)
    assert table.notes[0].startswith(f"{runs.self_ps[lost].sum() / runs.self_ps.sum():.1%} of the")
    assert '"?"' in table.notes[0]
    assert not any('"?"' in note for note in ops(recording).notes)


def test_an_instruction_with_two_events_a_run_ran_once(recording: Recording) -> None:
    runs = recording.operations
    sort = runs.code == runs.names.index("sort.0")
    order = np.sort(np.concatenate([np.arange(len(runs)), np.flatnonzero(sort)]))
    twice = ops(with_runs(recording, runs.select(order))).where("name", "sort.0")[0]
    once = ops(recording).where("name", "sort.0")[0]
    assert (twice.calls, twice.flops) == (once.calls, once.flops)


def test_equal_instructions_of_two_hosts_share_a_row(recording: Recording) -> None:
    both = Recording(recording.spaces * 2, ("a", "b"))
    table = ops(both)
    assert len(table) == len(ops(recording))
    for row, single in zip(table, ops(recording), strict=True):
        assert (row.name, row.calls) == (single.name, 2 * single.calls)
    assert {row.host for row in modules(both)} == {"a", "b"}


def test_a_group_is_described_by_what_takes_most_of_its_time(recording: Recording) -> None:
    runs = recording.operations
    late_first = with_runs(recording, runs.select(np.arange(len(runs))))
    vars(late_first.operations)["self_ps"] = runs.code**2  # later names take longer
    recording, single = late_first, ops(late_first)
    for by in ("source", "scope", "category"):
        for row in ops(recording, by):
            members = [x for x in single if (getattr(x, by) or f"(no {by})") == row.name]
            for column in {"opcode", "scope", "program", "category"} - {by}:
                times = Counter()
                for member in members:
                    times[getattr(member, column)] += member.self_us
                assert getattr(row, column) == times.most_common(1)[0][0]
            assert row.calls == sum(member.calls for member in members)


@pytest.mark.parametrize("values", [[7], [3, -2, 3, 5], [-(2**62), 2**62, 0, 2**62]])
def test_distinct_values_are_those_of_a_sort(values: list[int]) -> None:
    expected = np.unique(values, return_inverse=True)
    for actual, other in zip(distinct(np.array(values)), expected, strict=True):
        assert actual.tolist() == other.tolist()


def test_another_grouping_is_refused(recording: Recording) -> None:
    with pytest.raises(ValueError, match="by must be one of op, source, scope, category, got 'opc"):
        ops(recording, "opcode")


def test_a_million_runs_take_a_moment(recording: Recording) -> None:
    runs = recording.operations
    many = runs.select(np.tile(np.arange(len(runs)), 1 + 1_000_000 // len(runs)))
    vars(many)["self_ps"] = np.tile(runs.self_ps, 1 + 1_000_000 // len(runs))
    large = with_runs(recording, many)
    ops(recording)
    began = time.thread_time()
    ops(large)
    # Measured .15 s; the budget leaves room for a slower machine.
    assert time.thread_time() - began < 0.5


def test_a_program_has_the_wall_time_of_its_runs(recording: Recording) -> None:
    runs = recording.operations
    table = modules(recording)
    assert sum(round(row.self_us * 1e6) for row in table) == int(runs.self_ps.sum())
    for row in table:
        own = runs.program == row.id
        stops = runs.start_ps + runs.duration_ps
        each = [own & (runs.run == run) for run in set(runs.run[own].tolist())]
        walls = sorted((stops[m].max() - runs.start_ps[m].min()) / 1e6 for m in each)
        assert row.runs == len(walls)
        assert row.median_us == pytest.approx(np.median(walls), rel=1e-12)
        assert walls[-2 if row.runs > 1 else -1] <= row.p99_us <= walls[-1]
        assert row.instructions == len(set(runs.code[own].tolist()))
    (late,) = table.where("program", "jit_late")
    assert (late.runs, table.where("program", "jit_tail")[0].runs) == (1, STEPS)
    total = [row.flops for row in ops(recording) if row.program == "jit_tail"]
    assert table.where("program", "jit_tail")[0].flops == pytest.approx(sum(total) / STEPS)


def test_a_program_has_the_peak_of_its_memory_if_its_buffers_are_whole(
    recording: Recording,
) -> None:
    for row in modules(recording):
        module = recording.modules[recording.hosts.index(row.host), row.id]
        assert row.peak_bytes == memory(module).peak_bytes > 0
    damaged = with_runs(recording, recording.operations)
    for i, module in enumerate(damaged.modules.values()):
        module.buffers = module.buffers[:-1] if i % 2 else memoryview(b"")
    assert set(modules(damaged).column("peak_bytes")) == {None}


def test_annotations_are_those_of_the_program_alone(recording: Recording) -> None:
    table = annotations(recording)
    assert {row.name for row in table} == {"train", "data"}
    (data,) = table.where("name", "data")
    assert (data.calls, data.total_us >= STEPS * DATA_US) == (STEPS, True)
    spans = recording.spans
    times = spans.duration_ps[spans.named("data")] / 1e6
    assert data.p50_us == pytest.approx(np.sort(times)[1:3].mean(), rel=1e-12)
    assert np.sort(times)[-2] < data.p99_us <= times.max()


CATEGORIES = {
    "dot": "matmul",
    "convolution": "convolution",
    "all-reduce-start": "collective",
    "reduce-scatter": "collective",
    "reduce-window": "reduction",
    "transpose": "copy",
    "copy-done": "copy",
    "sort": "sort",
    "scatter": "gather/scatter",
    "rng-bit-generator": "random",
    "tanh": "elementwise",
    "conditional": "control",
    "fft": "other",
    "some-later-opcode": "other",
}


@pytest.mark.parametrize("opcode", CATEGORIES)
def test_the_opcode_gives_the_category(recording: Recording, opcode: str) -> None:
    module = next(iter(recording.modules.values()))
    instruction = dataclasses.replace(module.entry.root, opcode=opcode, called=())
    assert category_of(module, instruction) == CATEGORIES[opcode]


@pytest.mark.parametrize(
    ("op_name", "category"),
    [
        ("jit(f)/layers.0/attn/attention/pallas/pallas_call", "attention"),
        ("jit(f)/conv1/custom_call", "convolution"),
        ("jit(f)/convert_element_type", "custom call"),
        ("jit(f)/top_k", "sort"),
        ("jit(f)/pure_callback", "custom call"),
    ],
)
def test_the_kernel_gives_the_category_of_a_call(recording, op_name: str, category: str) -> None:
    module = next(iter(recording.modules.values()))
    call = dataclasses.replace(module.entry.root, opcode="custom-call", op_name=op_name, called=())
    assert category_of(module, call) == category


def test_a_fusion_has_the_dearest_category_of_its_body(recording: Recording) -> None:
    seen = set()
    for work in work_of(recording):
        if work.opcode == "fusion" and isinstance(work.module, Module):
            body = [x.opcode for x in work.module.body(work.instruction)]
            assert ("dot" in body) == (work.category == "matmul")
            seen.add(work.category)
    assert {"matmul", "elementwise"} <= seen
