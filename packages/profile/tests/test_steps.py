# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wall time of steps, divided."""

import dataclasses
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_profile.tables import activity
from dovetail_profile.tables.steps import partition, steps
from dovetail_profile.trace.files import load
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.spans import Spans

STEPS, DATA_US = 4, 10_000  # fixtures/make.py
PARTS = [f"{name}_us" for name in ("compute", "collective", "compile", "input", "dispatch")]
PARTS += ["other_us", "idle_us"]

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=6)


def edges(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start, length = np.array(pairs, np.int64).reshape(-1, 2).T
    return start, start + length


@settings(max_examples=100)
@given(st.lists(intervals, max_size=4), st.lists(st.integers(0, 40), min_size=2, max_size=5))
def test_each_moment_counts_for_the_first_layer_that_covers_it(layers, cuts) -> None:
    cuts = np.array(sorted(cuts))
    divided = partition(cuts[:-1], cuts[1:], [edges(layer) for layer in layers])
    for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
        expected = [0] * (len(layers) + 1)
        for moment in range(start, stop):
            covers = [any(a <= moment < a + n for a, n in layer) for layer in layers]
            expected[covers.index(True) if True in covers else -1] += 1
        assert divided[:, i].tolist() == expected


def spans_of(*events: tuple[str, float, float, int], lane: int = 0, host: int = 0) -> Spans:
    """Spans of (name, start in us, stop in us, step or -1) on one thread."""
    names = tuple(dict.fromkeys(name for name, *_ in events))
    start, stop = (np.array([int(e[i] * 1e6) for e in events], np.int64) for i in (1, 2))
    same = np.full(len(events), 1)
    return Spans(
        host=host * same,
        lane=lane * same,
        start_ps=start,
        duration_ps=stop - start,
        step=np.array([e[3] for e in events], np.int64),
        code=np.array([names.index(e[0]) for e in events], np.int64),
        names=names,
        lanes=("python", "python", "tf_pool"),
    )


def with_times(recording: Recording, spans: Spans, runs: dict[str, list[tuple]]) -> Recording:
    """The programs of a recording with other spans and runs: opcode -> (start, stop) in us."""
    changed = Recording(recording.spaces, ("host",))
    (program,) = (key for key, m in recording.modules.items() if m.name == "jit_tail")
    old, names = recording.operations, recording.modules[program].instructions.values()
    first = {opcode: next(x.name for x in names if x.opcode == opcode) for opcode in runs}
    events = [(first[op], *times) for op, several in runs.items() for times in several]
    start, stop = (np.array([int(e[i] * 1e6) for e in events], np.int64) for i in (1, 2))
    devices = np.array([e[3] if len(e) > 3 else 0 for e in events], np.int64)
    zero, lists = np.zeros(len(events), np.int64), list(first.values())
    changed.operations = dataclasses.replace(
        old,
        host=zero,
        device=devices,
        lane=devices,
        start_ps=start,
        duration_ps=stop - start,
        program=zero + program[1],
        run=zero,
        code=np.array([lists.index(e[0]) for e in events], np.int64),
        names=tuple(lists),
        lanes=("a", "b"),
    )
    changed.spans = spans
    return changed


def parts(row) -> dict[str, float]:
    """The parts of a row that are not zero, in whole microseconds."""
    assert sum(getattr(row, name) for name in PARTS) == pytest.approx(row.wall_us, rel=1e-12)
    return {name[:-3]: round(getattr(row, name)) for name in PARTS if getattr(row, name)}


TWO = [("train", 0, 80, 3), ("train", 100, 200, 4)]


def test_each_activity_has_its_time(recording: Recording) -> None:
    spans = spans_of(
        *TWO,
        ("data", 5, 25, -1),  # 10 us of it while a device computes
        ("PjitFunction(f)", 20, 40, -1),
        ("Handle inputs", 21, 39, -1),
        ("hooks", 70, 90, -1),
        ("PjitFunction(g)", 105, 150, -1),  # compiles: all of it
        ("backend_compile_and_load", 110, 140, -1),
        ("compile", 150, 155, -1),
        ("$loop.py:3 step", 0, 200, -1),
    )
    table = steps(with_times(recording, spans, {"sort": [(0, 15), (60, 75), (170, 180)]}))
    first, second = table
    assert (first.step, first.name, first.wall_us, first.skew_us) == (3, "train", 100, None)
    assert parts(first) == {"compute": 30, "input": 10, "dispatch": 15, "other": 15, "idle": 30}
    assert (second.step, second.wall_us) == (4, 100)
    assert parts(second) == {"compute": 10, "compile": 50, "idle": 40}


def test_a_collective_counts_where_nothing_else_runs(recording: Recording, monkeypatch) -> None:
    monkeypatch.setattr(
        "dovetail_profile.tables.steps.category_of",
        lambda _, x: {"sort": "collective", "while": "control"}.get(x.opcode, "elementwise"),
    )
    runs = {"sort": [(10, 40)], "fusion": [(0, 20), (50, 60)], "while": [(0, 70)]}
    table = steps(with_times(recording, spans_of(*TWO), runs))
    # Inside the loop, between its instructions, the device is not idle.
    assert parts(table[0]) == {"compute": 50, "collective": 20, "idle": 30}


def test_runs_without_a_program_are_compute(recording: Recording) -> None:
    unknown = with_times(recording, spans_of(*TWO), {"sort": [(0, 15)]})
    unknown.modules = {}
    assert parts(steps(unknown)[0]) == {"compute": 15, "idle": 85}


def test_other_threads_do_not_count(recording: Recording) -> None:
    spans = spans_of(*TWO, ("data", 20, 40, -1), ("data", 60, 70, -1))
    lanes = dataclasses.replace(spans, lane=np.array([0, 0, 1, 0]))
    table = steps(with_times(recording, lanes, {"sort": [(0, 15)]}))
    assert parts(table[0]) == {"compute": 15, "input": 10, "idle": 75}


def test_of_several_devices_a_step_has_the_mean(recording: Recording) -> None:
    runs = {"sort": [(0, 60, 0), (0, 20, 1), (90, 110, 1)]}
    table = steps(with_times(recording, spans_of(*TWO, ("data", 20, 40, -1)), runs))
    assert parts(table[0]) == {"compute": 45, "input": 10, "idle": 45}
    assert "host has 2 devices; the times of a step are their mean." in table.notes


def test_work_after_the_last_step_is_told(recording: Recording) -> None:
    late = steps(with_times(recording, spans_of(*TWO), {"sort": [(190, 1450)]}))
    assert late.notes == ("The devices of host worked for 1,250 us after its last step.",)
    assert parts(late[1]) == {"compute": 10, "idle": 90}
    assert steps(with_times(recording, spans_of(*TWO), {"sort": [(0, 200)]})).notes == ()


def test_an_annotation_around_steps_is_none(recording: Recording) -> None:
    spans = spans_of(("epoch", 0, 300, 0), *TWO, ("evaluate", 210, 260, 0))
    table = steps(with_times(recording, spans, {"sort": [(0, 1)]}))
    assert [(row.name, row.step, row.wall_us) for row in table] == [
        ("train", 3, 100), ("train", 4, 110), ("evaluate", 0, 50)
    ]  # fmt: skip


def test_without_numbers_the_phases_of_the_engine_are_steps(recording: Recording) -> None:
    spans = spans_of(("prefill", 0, 20, -1), ("decode", 50, 60, -1), ("decode", 70, 80, -1))
    table = steps(with_times(recording, spans, {"sort": [(10, 30)]}))
    assert [(row.name, row.step) for row in table] == [("prefill", 0), ("decode", 1), ("decode", 2)]
    assert parts(table[0]) == {"compute": 20, "idle": 30}


def test_without_steps_the_table_says_how_to_have_them(recording: Recording) -> None:
    table = steps(with_times(recording, spans_of(("data", 0, 5, -1)), {"sort": [(0, 1)]}))
    assert len(table) == 0
    assert "jax.profiler.StepTraceAnnotation" in table.notes[0]


def test_skew_is_the_delay_on_a_common_clock(recording: Recording) -> None:
    both = Recording(recording.spaces * 2, ("a", "b"))
    one, two = spans_of(*TWO), spans_of(("train", 30, 90, 3), ("train", 95, 200, 4), host=1)
    both.spans = dataclasses.replace(
        one,
        **{
            name: np.concatenate([getattr(one, name), getattr(two, name)])
            for name in ("host", "lane", "start_ps", "duration_ps", "step", "code")
        },
    )
    both.start_ns = (1_796_043_375_000_000_000, 1_796_043_375_000_010_000)  # b began 10 us later
    table = steps(both)
    assert [(row.host, row.step, row.skew_us) for row in table] == [
        ("a", 3, 0), ("a", 4, 0), ("b", 3, 40), ("b", 4, 5)
    ]  # fmt: skip
    both.start_ns = (None, 5)
    assert {row.skew_us for row in steps(both)} == {None}


def test_names_tell_annotations_of_the_program_from_those_of_jax() -> None:
    mine = spans_of(("train", 0, 90, 1), ("my data/load: a", 1, 2, -1), ("save", 3, 4, -1))
    jax_own = [
        *("PjitFunction(f)", "np.asarray(jax.Array)", "shard_args", "DevicePut", "end: copy"),
        *("CommonPjRtClient::Load", "$fit.py:3 run", "Wait for usage holds", "ParseArguments"),
    ]
    theirs = spans_of(*((name, 10, 20, -1) for name in jax_own), ("anything inside", 15, 16, -1))
    assert activity.of_user(mine).all()
    assert not activity.of_user(theirs).any()
    assert not activity.of_user(dataclasses.replace(mine, lane=mine.lane + 2)).any()  # a pool


def test_steps_of_a_trace(recording: Recording) -> None:
    table = steps(recording)
    assert table.column("step") == list(range(STEPS))
    spans = recording.spans
    starts = spans.start_ps[spans.named("train")]
    assert [row.wall_us for row in table[:-1]] == (np.diff(starts) / 1e6).tolist()
    compiled = [row.compile_us for row in table]
    assert compiled[2] > 1000  # `late` is compiled in step 2
    assert compiled[:2] + compiled[3:] == [0, 0, 0]
    for row in table:
        assert parts(row)["input"] == pytest.approx(DATA_US, rel=0.05)  # sleeps end late
        assert row.compute_us > 0


SLEEPS = {"input_us": 0.06, "compute_us": 0.05, "other_us": 0.04, "idle_us": 0.03}


def test_injected_sleeps_are_recovered(tmp_path) -> None:
    def wait(x):
        time.sleep(SLEEPS["compute_us"])
        return x

    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    step = jax.jit(lambda x: jax.pure_callback(wait, shape, x) + 1)
    x = step(jnp.zeros(3)).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(tmp_path), profiler_options=options):
        for i in range(4):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                with jax.profiler.TraceAnnotation("data"):
                    time.sleep(SLEEPS["input_us"])
                x = step(x).block_until_ready()
                with jax.profiler.TraceAnnotation("hooks"):
                    time.sleep(SLEEPS["other_us"])
                time.sleep(SLEEPS["idle_us"])
    table = steps(load(tmp_path))
    assert table.column("step") == [0, 1, 2, 3]
    for name, seconds in SLEEPS.items():
        # Twentieths, as promised. A sleep never ends early; under load it ends late, but hardly in
        # all of the steps.
        assert min(table.column(name)) / 1e6 == pytest.approx(seconds, rel=0.05)
