# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Planted slow spots are named, with the time that they take, and a clean program has none."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded import recorded

from dovetail_profile._compat import module_of_compiled
from dovetail_profile.peaks import Peaks
from dovetail_profile.profile import read
from dovetail_profile.program.module import Module
from dovetail_profile.tables.suggestions import suggestions

N = 64
PEAKS = Peaks(device_kind="a device", flops_per_s={"float32": 1e9}, bytes_per_s=1e9)


def compiled(function, dtype=jnp.float32, arguments: int = 1) -> Module:
    x = [jax.ShapeDtypeStruct((N, N), dtype)] * arguments
    return module_of_compiled(jax.jit(function).lower(*x).compile())


@pytest.fixture(scope="module")
def product() -> Module:
    return compiled(lambda x: x @ x)


def of_opcode(module: Module, opcode: str) -> str:
    """The instruction that runs and has the opcode, in its body or itself."""
    names = [x.name for x in module.entry.instructions if x.opcode != "parameter"]
    bodies = {n: [x.opcode for x in module.body(module.instructions[n])] for n in names}
    return next(name for name, opcodes in bodies.items() if opcode in opcodes)


def two(product: Module, other: Module, name: str, us: int):
    """A step of 1000 us: of the product, and at its end so many of an instruction of another."""
    runs = [(1, product.entry.root.name, 0, 1000 - us), (2, name, 1000 - us, us)]
    return recorded({1: product, 2: other}, runs, [("train", 3, 0, 1000)])


def test_a_clean_program_has_no_suggestion(product):
    name = product.entry.root.name
    flops = 2 * N**3  # 524 us at the peak
    recording = recorded({1: product}, [(1, name, 0, 600)], [("train", 3, 0, 620)])
    assert len(suggestions(recording)) == len(suggestions(recording, PEAKS)) == 0
    slow = recorded({1: product}, [(1, name, 0, 6000)], [("train", 3, 0, 6020)])
    (row,) = suggestions(slow, PEAKS)
    assert (row.rule, row.gain_us) == ("far from the roof", pytest.approx(6000 - flops / 1e3))
    assert row.share == pytest.approx(row.gain_us / 6020)
    assert len(suggestions(slow)) == 0


def remat(x):
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ x).sum()))(x)


def callback(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


PLANTED = {
    "moves of data": (lambda x: x.T, "copy", 50),
    "host callbacks": (callback, "custom-call", 20),
    "sorts and scatters": (lambda x: jnp.sort(x, axis=0), "sort", 100),
}


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_instruction_is_named(product, rule):
    function, opcode, least = PLANTED[rule]
    module = compiled(function)
    name = of_opcode(module, opcode)
    (row,) = suggestions(two(product, module, name, least))
    # Times are whole microseconds: only sums and quotients of floats.
    assert (row.rule, row.gain_us, row.share) == (rule, pytest.approx(least), least / 1000)
    assert row.rows.split(" (")[0] == name
    assert row.rows == name or "test_suggestions.py:" in row.rows
    assert len(suggestions(two(product, module, name, least - 1))) == 0


def test_recomputed_work_is_named(product):
    module = compiled(remat)
    again = [x for x in module.entry.instructions if "rematted" in x.op_name]
    (row,) = suggestions(two(product, module, again[-1].name, 50)).where("rule", "recomputed")
    assert (row.gain_us, row.rows.split(" (")[0]) == (pytest.approx(50), again[-1].name)


def test_small_collectives_and_exposed_ones_are_named(product):
    module = compiled(lambda x: x.T)
    name = of_opcode(module, "copy")
    reduce = dataclasses.replace(module.instructions[name], opcode="all-reduce")
    module.instructions = {**module.instructions, name: reduce}
    table = suggestions(two(product, module, name, 50))
    assert table.column("rule") == ["small collectives", "exposed collectives"]
    assert table.column("gain_us") == [pytest.approx(50)] * 2
    assert [rows.split(" (")[0] for rows in table.column("rows")] == [name, "train 3"]
    large = dataclasses.replace(reduce.shape, dims=(1024, 256))  # 1 MiB
    module.instructions = {name: dataclasses.replace(reduce, shape=large)}
    assert suggestions(two(product, module, name, 50)).column("rule") == ["exposed collectives"]


def test_short_operations_are_named(product):
    module = compiled(jnp.sin)
    runs = [(2, module.entry.root.name, 4 * i, 4) for i in range(25)]
    runs.append((1, product.entry.root.name, 100, 900))
    recording = recorded({1: product, 2: module}, runs, [("train", 3, 0, 1000)])
    (row,) = suggestions(recording)
    assert (row.rule, row.gain_us) == ("short operations", pytest.approx(100))
    runs[:25] = [(2, module.entry.root.name, 0, 100)]
    assert len(suggestions(recorded({1: product, 2: module}, runs))) == 0


def test_products_of_float32_in_a_bfloat16_program_are_named():
    def mixed(x, y):
        return (x @ y).astype(jnp.float32) @ (y.astype(jnp.float32) + 0.1)

    def gain(function, dtype, peaks=None) -> float:
        module = compiled(function, dtype, 2)
        names = [
            x.name for x in module.entry.instructions if x.opcode not in ("parameter", "constant")
        ]
        runs = [(1, name, 100 * i, 100) for i, name in enumerate(names)]
        table = suggestions(recorded({1: module}, runs), peaks)
        return sum(row.gain_us for row in table if row.rule == "float32 products")

    assert gain(mixed, jnp.bfloat16) == pytest.approx(50)  # of one of the instructions, half
    assert gain(lambda x, y: x @ y, jnp.bfloat16) == 0  # also where the CPU has float32 dots alone
    assert gain(mixed, jnp.float32) == 0
    rates = {"float32": 1e12, "bfloat16": 4e12}
    peaks = Peaks(device_kind="a device", flops_per_s=rates, bytes_per_s=1e15)
    assert gain(mixed, jnp.bfloat16, peaks) == pytest.approx(75)


def test_waits_of_steps_are_named_the_largest_first(product):
    name = product.entry.root.name
    starts = (0, 1000)
    spans = [
        *(("train", i, start, 1000) for i, start in enumerate(starts)),
        *(("data", -1, start, 60) for start in starts),
        *(("PjitFunction(f)", -1, start + 60, 40) for start in starts),
        *(("save", -1, start + 100, 200) for start in starts[1:]),
    ]
    runs = [(1, name, 300, 600), (1, name, 1300, 700)]
    table = suggestions(recorded({1: product}, runs, spans))
    # Idle are 100 to 300 and 900 to 1000 of the first step; dispatch has 40 of each.
    assert table.column("rule") == ["host gaps", "other host work", "input waits"]
    assert table.column("gain_us") == [pytest.approx(us) for us in (380, 200, 120)]
    assert table.column("share") == [pytest.approx(us / 2000) for us in (380, 200, 120)]
    assert table.column("rows") == ["train 0, train 1", "train 1", "train 0, train 1"]


def test_compilations_count_from_the_second_step_on(product):
    name = product.entry.root.name
    spans = [("train", i, 1000 * i, 1000) for i in range(3)]
    runs = [(1, name, 1000 * i + 100, 900) for i in range(3)]
    compiling = [("backend_compile_and_load", -1, 1000 * i, 100 - i) for i in range(3)]
    rules = [
        suggestions(recorded({1: product}, runs, spans + compiling[:n])).column("rule")
        for n in (1, 2)
    ]
    assert rules == [[], ["compilations"]]
    (row,) = suggestions(recorded({1: product}, runs, spans + compiling))
    assert (row.gain_us, row.rows) == (pytest.approx(297), "train 0, train 1, train 2")


def test_times_of_threads_that_overlap_are_no_wall_time(product):
    module = compiled(lambda x: x.T)
    name = of_opcode(module, "copy")
    runs = [(1, product.entry.root.name, 0, 1000), (2, name, 0, 1000)]
    recording = recorded({1: product, 2: module}, runs)
    lanes = np.arange(2)
    recording.operations = dataclasses.replace(
        recording.operations, lane=lanes, lanes=("first", "second")
    )
    (row,) = suggestions(recording)
    assert (row.gain_us, row.share) == (pytest.approx(500), pytest.approx(0.5))


def test_a_trace_without_anything_has_no_suggestion():
    table = suggestions(recorded({}, []))
    assert (len(table), table.columns[0]) == (0, "rule")


def test_the_sleeps_of_recorded_programs_are_named_first(recording):
    row = suggestions(recording)[0]
    assert row.rule == "input waits"
    assert row.gain_us >= 4 * 10_000  # fixtures/make.py sleeps so long


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["transpose", "input", "compile", "callback"])
def test_a_slow_spot_is_named_first_on_its_own_profile(tmp_path, fault, uncached):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((700, 700), np.float32))
    y = jnp.ones((128, 128, 200))

    def model(x):
        return jnp.tanh(x @ x) @ x

    def slow(x):
        time.sleep(0.05)
        return x

    good = jax.jit(model)
    moved = jax.jit(lambda x, y: (model(x), y.T))
    called = jax.jit(
        lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct((), x.dtype), model(x).sum())
    )

    def fetched(i):
        with jax.profiler.TraceAnnotation("data"):
            time.sleep(0.05)
        return good(x)

    step, rule = {
        "transpose": (lambda i: moved(x, y), "moves of data"),
        "input": (fetched, "input waits"),
        "compile": (lambda i: jax.jit(lambda x: model(x) + i)(x), "compilations"),
        "callback": (lambda i: called(x), "host callbacks"),
    }[fault]
    jax.block_until_ready(step(-1))
    jax.profiler.start_trace(tmp_path)
    for i in range(5):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            jax.block_until_ready(step(i))
    jax.profiler.stop_trace()
    table = suggestions(read(tmp_path)._recording)
    assert table[0].rule == rule, str(table)
    if fault in ("input", "callback"):
        assert table[0].gain_us >= 5 * 50_000
