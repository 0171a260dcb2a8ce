# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives: groups and bytes by hand, times of a trace whose runs are chosen."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import encoding
import jax
import pytest

from dovetail_profile.profile import Profile
from dovetail_profile.program.collective import collectives_of
from dovetail_profile.program.module import Module
from dovetail_profile.tables.collectives import collectives
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse

FIXTURES = Path(__file__).parent / "fixtures"
# A device has 32 x 24 of float32: S = 3,072 bytes. Groups of "b" are 4, of "a" 2, of both 8.
EXPECTED = {
    "all-reduce": (4, 2, 2 * 3 / 4 * 3072),
    "all-gather": (2, 4, 1 / 2 * 2 * 3072),
    "reduce-scatter": (8, 1, 7 / 8 * 3072),
    "all-to-all": (4, 2, 3 / 4 * 3072),
    "collective-permute": (4, 2, 3072),
}


@pytest.fixture(scope="module")
def five():
    """Two runs of five collectives on eight devices."""
    return Recording([parse((FIXTURES / "collectives.xplane.pb").read_bytes())], ["host"])


def test_groups_and_bytes_of_a_trace(five):
    table = collectives(five)
    assert {r.kind: (r.group_size, r.groups, r.bytes) for r in table} == EXPECTED
    assert {(r.program, r.calls) for r in table} == {("jit_five", 2 * 8)}
    (reduce,) = table.where("kind", "all-reduce")
    assert reduce.scope == "layers.0"
    assert reduce.source.startswith("make_collectives.py:")
    for row in table:
        assert row.time_us == pytest.approx(row.hidden_us + row.exposed_us)
        assert row.bytes_per_s == pytest.approx(row.bytes * 16 / row.time_us * 1e6)
        assert row.link_fraction is None
    assert [r.exposed_us for r in table] == sorted((r.exposed_us for r in table), reverse=True)


def test_time_of_a_trace_is_that_of_its_events(five):
    runs = five.operations
    for row in collectives(five):
        mask = runs.code == runs.names.index(row.op)
        assert row.time_us == pytest.approx(runs.duration_ps[mask].sum() / 1e6)


def test_fraction_of_the_link(five):
    for row in collectives(five, link_bytes_per_s=1e9):
        assert row.link_fraction == pytest.approx(row.bytes_per_s / 1e9)


# Forms of groups and pairs: S is 8 x 16 x 4 = 512 bytes, twice that after the gather of two.
FORMS = {
    "reduce-start": ("all-reduce", "reduce-done", 4, 2, 2 * 3 / 4 * 512),
    "gather-start": ("all-gather", "gather-done", 2, 4, 1 / 2 * 1024),
    "permute-start": ("collective-permute", "permute-done", 3, 2, 512),
    "exchange-start": ("all-to-all", "exchange-done", 4, 2, 3 / 4 * 512),
    "meshed": ("all-reduce", None, 4, 2, 2 * 3 / 4 * 512),
    "split": ("all-reduce", None, 2, 4, 512),
    "everyone": ("all-reduce", None, None, None, None),
}


def test_pairs_and_all_forms_of_groups():
    module = Module(memoryview((FIXTURES / "asynchronous.hlo.pb").read_bytes()))
    forms = {
        x.start.name: (x.kind, x.done and x.done.name, x.group_size, x.groups, x.bytes)
        for x in collectives_of(module)
    }
    assert forms == FORMS


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((49, encoding.message((1, b"\x00\x01\x02"))), (3, 1)),
        ((87, encoding.message((2, encoding.message((1, 5), (2, 4))))), (4, 5)),
        ((52, encoding.message((1, 3), (2, 3))), (1, 1)),
    ],
    ids=["replica_groups", "iota in the list", "to itself"],
)
def test_older_forms_of_groups(groups, expected):
    kind = "collective-permute" if groups[0] == 52 else "all-reduce"
    shape = encoding.message((2, 11), (3, b"\x06"))
    x = encoding.message((1, "x"), (2, kind), (3, shape), (35, 1), groups)
    computation = encoding.message((2, x), (5, 1), (6, 1))
    (collective,) = collectives_of(Module(memoryview(encoding.message((3, computation), (6, 1)))))
    assert (collective.group_size, collective.groups) == expected
    assert (collective.bytes == 0) == (expected[0] == 1)


def test_work_between_start_and_done_hides_the_time():
    """Device 0 calls twice; device 1 has no event of the end, like a GPU."""
    events = [
        ("reduce-start", 0, 0, 10),
        ("twice", 0, 10, 30),
        ("reduce-done", 0, 60, 10),  # 70 from start to end, 30 of them hidden
        ("reduce-start", 0, 100, 10),
        ("twice", 0, 105, 15),
        ("reduce-done", 0, 115, 15),  # 30, 15
        ("reduce-start", 1, 0, 50),
        ("twice", 1, 20, 60),  # 50, 30
        ("gather-start", 1, 10, 20),  # is no other work
        ("outer", 1, 0, 90),  # lasts as long as what it calls
    ]
    module = (FIXTURES / "asynchronous.hlo.pb").read_bytes()
    metadata = encoding.Plane("/host:metadata").kind(
        "asynchronous", {"program_id": 7, "Hlo Proto": encoding.message((1, module))}
    )
    cpu = encoding.Plane("/host:CPU")
    for i, (name, device, start, duration) in enumerate(events):
        stats = {"hlo_op": name, "program_id": 7, "run_id": 1, "device_ordinal": device}
        cpu.line(f"thread {i}", [(name, start, duration, stats)])
    recording = Recording([parse(encoding.trace(metadata, cpu))], ["host"])
    rows = {row.op: row for row in collectives(recording)}
    reduce = rows["reduce-start"]
    picoseconds = [round(t * 1e6) for t in (reduce.time_us, reduce.hidden_us, reduce.exposed_us)]
    assert (reduce.calls, picoseconds) == (3, [150, 75, 75])
    assert reduce.bytes_per_s == pytest.approx(768 * 3 / 150e-12)
    assert (rows["meshed"].calls, rows["meshed"].time_us, rows["meshed"].bytes) == (0, None, 768)


def test_a_compiled_program_that_never_ran():
    mesh = jax.make_mesh((1,), ("a",))

    def shift(x, _):
        return jax.lax.ppermute(x + 1, "a", [(0, 0)]), None

    @partial(jax.shard_map, mesh=mesh, in_specs=jax.P("a"), out_specs=jax.P("a"))
    def f(x):
        return jax.lax.scan(shift, jax.lax.ppermute(x, "a", [(0, 0)]), None, length=5)[0]

    x = jax.ShapeDtypeStruct((4, 6), "float32", sharding=jax.NamedSharding(mesh, jax.P("a")))
    table = collectives(jax.jit(f).lower(x).compile())
    assert {(r.kind, r.group_size, r.bytes, r.time_us) for r in table} == {
        ("collective-permute", 1, 0, None)
    }
    assert sorted(table.column("calls")) == [1, 5]


def test_a_profile_has_the_table_and_the_graph(five):
    profile = Profile(five)
    assert profile.collectives(link_bytes_per_s=1e9) == collectives(five, link_bytes_per_s=1e9)
    (reduce,) = profile.collectives().where("kind", "all-reduce")
    part = profile.graph("five", reduce.op, depth=1)
    assert reduce.op in part.nodes.column("name")
    assert 2 <= len(part.nodes) < len(profile.graph("jit_five").nodes)
    assert profile.memory("five") is profile.memory("five")
    assert profile.memory("five").program == "jit_five"


@pytest.mark.thorough
def test_eight_devices_in_a_process_of_their_own():
    code = (
        "import jax, make_collectives as m\n"
        "from dovetail_profile.tables.collectives import collectives\n"
        "mesh = jax.make_mesh((2, 4), ('a', 'b'))\n"
        "x = jax.ShapeDtypeStruct((m.ROWS, m.COLUMNS), 'float32',\n"
        "    sharding=jax.NamedSharding(mesh, jax.P('a', 'b')))\n"
        "table = collectives(m.program(mesh).lower(x).compile())\n"
        "print({r.kind: (r.group_size, r.groups, r.bytes) for r in table})"
    )
    path = os.pathsep.join([str(FIXTURES), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str({k: (a, b, float(c)) for k, (a, b, c) in ORDERED.items()})


# The order of the table without times: the most bytes first.
ORDERED = dict(sorted(EXPECTED.items(), key=lambda item: -item[1][2]))
