# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Memory: peaks by hand, totals as JAX has them, and assignments that make no sense."""

import random

import encoding
import jax
import jax.numpy as jnp
import pytest

from dovetail_profile.program.buffers import assignment_of
from dovetail_profile.program.module import Module
from dovetail_profile.tables.memory import memory, memory_named
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse
from dovetail_profile.wire import Damaged, Message

ALLOC, FREE, SHARE = 0, 1, 2


def test_a_chain_of_three_matrices():
    """(a b) c of 64x32, 32x128, 128x16: arguments, the product a b, and the result."""
    a, b, c = (jnp.ones(shape) for shape in ((64, 32), (32, 128), (128, 16)))
    answer = memory(jax.jit(lambda a, b, c: (a @ b) @ c).lower(a, b, c).compile())
    arguments, product, result = 4 * (64 * 32 + 32 * 128 + 128 * 16), 4 * 64 * 128, 4 * 64 * 16
    assert answer.peak_bytes == arguments + product + result
    assert answer.at_peak.column("bytes")[0] == product
    assert {r.name: r.bytes for r in answer.by("kind")} == {
        "parameter": arguments,
        "temporary": product,
        "output": result,
    }
    assert answer.at_peak.where("kind", "parameter").column("scope")[0] in "abc"
    (row,) = answer.at_peak.where("kind", "temporary")
    assert (row.shape, row.source.split(":")[0]) == ("f32[64,128]", "tests/test_memory.py")
    assert sum(row.share for row in answer.by("scope")) == pytest.approx(1)


def _program(seed):
    """Draws a program of matrices, and arguments for it."""
    draw = random.Random(seed)
    n = draw.randrange(3, 40)
    steps = draw.choices(("matmul", "sort", "scan", "tanh", "keep", "double"), k=4)

    def f(x, y):
        kept = []
        for step in steps:
            if step == "matmul":
                x = x @ y
            elif step == "sort":
                x = jnp.sort(x, axis=0)
            elif step == "scan":
                x, sums = jax.lax.scan(lambda c, _: (jnp.sin(c @ y), c.sum()), x, None, length=3)
                kept.append(sums)
            elif step == "tanh":
                x = jnp.tanh(x) + y
            else:
                kept.append(x * 2 if step == "double" else x)
        return x, kept

    donated = draw.choice(((), (0,), (0, 1)))
    return jax.jit(f, donate_argnums=donated), (jnp.ones((n, n)), jnp.ones((n, n)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_totals_are_those_of_jax(seed):
    f, arguments = _program(seed)
    compiled = f.lower(*arguments).compile()
    answer, stats = memory(compiled), compiled.memory_analysis()
    totals = answer.totals
    assert totals.arguments_bytes == stats.argument_size_in_bytes
    assert totals.outputs_bytes == stats.output_size_in_bytes
    assert totals.aliased_bytes == stats.alias_size_in_bytes
    assert totals.temporaries_bytes == stats.temp_size_in_bytes
    # XLA leaves out heaps whose order it does not keep; no buffer can need more than is allocated.
    allocated = totals.arguments_bytes + totals.outputs_bytes - totals.aliased_bytes
    allocated += totals.temporaries_bytes + totals.constants_bytes
    assert stats.peak_memory_in_bytes <= answer.peak_bytes <= allocated


def test_a_trace_has_the_memory_over_time(recording):
    answer = memory_named(recording, "train_step")
    live = answer.over_time.column("live_bytes")
    assert max(live) == answer.peak_bytes == sum(answer.at_peak.column("bytes"))
    assert len(live) > 20
    # As make.py has them: two layers, up and down; x and y. The parameters are donated.
    parameters, batch = 2 * 2 * 64 * 160 * 4, 2 * 48 * 64 * 4
    assert answer.totals.arguments_bytes == parameters + batch
    assert answer.totals.aliased_bytes == parameters
    assert memory_named(recording, "jit_train_step") == answer
    scopes = answer.at_peak.where("kind", "parameter").column("scope")
    assert {"params.0.up", "params.1.down", "x", "y"} <= set(scopes)


def _module(events, buffers, *, allocations=(), peaks=(), others=None):
    """A module of instructions a, b, c, ... and an assignment of buffers to one heap."""
    instructions = dict.fromkeys("abcdef", "add")
    module = Message(memoryview(encoding.hlo("jit_f", instructions))).bytes(1)
    fields = [
        # The first is known by name alone, as in old files.
        (
            1,
            encoding.message(
                (1, i), (2, size), (3, encoding.message((4, i) if i > 1 else (2, "a")))
            ),
        )
        for i, size in (buffers | (others or {})).items()
    ]
    heap = [(9, encoding.message((1, i))) for i in buffers]
    fields += [(3, encoding.message((1, 9), (2, 1000), *heap))]
    fields += [(3, allocation) for allocation in allocations]
    steps = [
        (1, encoding.message((1, kind), (2, number), (4, "abcdefghi"[number - 1]), (5, shared)))
        for kind, number, shared in events
    ]
    if steps:  # twice, as XLA repeats the trace for each part of a heap
        fields += [(4, encoding.message(*steps))] * 2
    fields += [(5, encoding.message((1, 9), (2, bytes(peaks))))] * bool(peaks)
    return Module(module, memoryview(encoding.message(*fields)))


SIZES = {1: 100, 2: 30, 3: 7, 4: 50}


def test_the_replay_of_a_heap():
    events = [
        (ALLOC, 1, 0),  # 100
        (ALLOC, 2, 0),  # 130
        (SHARE, 3, 1),  # 3 has the memory of 1: 130
        (FREE, 1, 0),  # still used by 3: 130
        (FREE, 2, 0),  # 100
        (ALLOC, 4, 0),  # 150, the peak
        (FREE, 3, 0),  # 50
        (ALLOC, 1, 0),  # 150 again
    ]
    argument = encoding.message((1, 0), (2, 1000), (5, 1))
    host = encoding.message((1, 1), (2, 5000), (7, 1), (8, 5))
    stack = encoding.message((1, 2), (2, 300), (3, 1))  # of each thread: does not count
    answer = memory(_module(events, SIZES, allocations=[argument, host, stack]))
    live = [100, 130, 130, 130, 100, 150, 50, 150]
    assert answer.over_time.column("live_bytes") == [1000, *(1000 + x for x in live)]
    assert answer.over_time.column("instruction") == ["", *"abcabdca"]
    assert answer.peak_bytes == 1150
    assert [(row.buffer, row.bytes) for row in answer.at_peak] == [("a", 100), ("d", 50)]
    assert answer.notes == ("5,000 bytes in the memory of the host are not part of the peak.",)
    assert answer.totals.outputs_bytes == 0


def test_heaps_that_were_planned_apart():
    events = [(ALLOC, 1, 0), (ALLOC, 2, 0), (FREE, 1, 0)]
    second = encoding.message((1, 5), (2, 900), (9, encoding.message((1, 3))))
    answer = memory(_module(events, {1: 100, 2: 30}, allocations=[second], others={3: 800}))
    assert answer.over_time.column("live_bytes") == [800, 900, 930, 830]
    assert (answer.peak_bytes, answer.at_peak.column("buffer")) == (930, ["c", "a", "b"])
    assert "Their peaks are added" in answer.notes[0]


def test_a_heap_without_its_order():
    answer = memory(_module((), SIZES, peaks=(2, 4)))
    assert (answer.peak_bytes, len(answer.over_time)) == (80, 1)
    assert answer.at_peak.column("buffer") == ["d", "b"]
    assert "over_time has one row" in answer.notes[0]
    largest = memory(_module((), SIZES))
    assert (largest.peak_bytes, largest.at_peak.column("buffer")) == (100, ["a"])


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([(FREE, 1, 0)], "buffer 1"),
        ([(ALLOC, 9, 0)], "buffer 9"),
        ([(SHARE, 2, 1)], "buffer 2"),
        ([(ALLOC, 1, 0), (FREE, 1, 0), (FREE, 1, 0)], "not alive"),
    ],
)
def test_a_heap_that_makes_no_sense(events, text):
    with pytest.raises(Damaged, match=text):
        assignment_of(_module(events, SIZES))


def test_an_allocation_of_absent_buffers():
    allocation = encoding.message((1, 3), (2, 8), (9, encoding.message((1, 77))))
    with pytest.raises(Damaged, match="77, which is absent"):
        assignment_of(_module((), SIZES, allocations=[allocation]))


def test_an_assignment_that_is_cut_or_changed(recording):
    (module,) = (m for m in recording.modules.values() if m.name == "jit_late")
    data, draw = bytes(module.buffers), random.Random(0)
    damaged = 0
    for _ in range(60):
        changed = bytearray(data[: draw.randrange(1, len(data) + 1)])
        changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            assignment_of(Module(memoryview(b""), memoryview(bytes(changed))))
        except Damaged:
            damaged += 1
    assert damaged > 20


def test_a_program_without_buffers():
    module = Module(Message(memoryview(encoding.hlo("jit_f", {"a": "add"}))).bytes(1))
    with pytest.raises(ValueError, match=r"'jit_f' is not kept; traces have it.*\.compile\(\)"):
        memory(module)


def _recording(*runs):
    """Programs 1 and 2 are named jit_f, 3 is jit_g; runs are of these, one after another."""
    metadata = encoding.Plane("/host:metadata")
    for number, name in ((1, "jit_f"), (2, "jit_f"), (3, "jit_g")):
        buffers = encoding.message((3, encoding.message((1, 0), (2, number), (5, 1))))
        module = encoding.hlo(name, {"a": "add"}) + encoding.message((3, buffers))
        metadata.kind(f"{name}({number})", {"program_id": number, "Hlo Proto": module})
    stats = [{"hlo_op": "a", "program_id": number, "run_id": 0} for number in runs]
    events = [("a", i * 10, 5, values) for i, values in enumerate(stats)]
    cpu = encoding.Plane("/host:CPU").line("thread", events)
    return Recording([parse(encoding.trace(metadata, cpu))], ["host"])


@pytest.mark.parametrize(("runs", "newest"), [((1, 2), 2), ((2, 1), 1), ((1, 2, 1, 3), 1)])
def test_of_programs_with_one_name_the_last_to_run_counts(runs, newest):
    answer = memory_named(_recording(*runs), "f")
    assert answer.totals.arguments_bytes == newest
    (note,) = answer.notes
    assert note == f"2 programs are named 'f': this is number {newest}, the last to run."


def test_an_unknown_program_has_near_names():
    with pytest.raises(KeyError, match="a program must be one of jit_g, jit_f, got 'jit_gg'"):
        memory_named(_recording(1), "jit_gg")


def test_the_printed_form(recording):
    text = str(memory_named(recording, "train_step"))
    assert text.startswith("jit_train_step: ")
    assert "arguments 188,416" in text
    assert "more" in text
