# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Planes, lines and events, against JAX's own reader of traces."""

from pathlib import Path

import jax.profiler
import numpy as np
import pytest
from encoding import Plane
from encoding import trace as encoded
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse
from dovetail_profile.wire import Damaged

FIXTURES = sorted(Path(__file__).parent.glob("fixtures/*.xplane.pb"))


# A warning of its types, made an error, aborts the process.
@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")
def test_events_are_those_that_jax_reads(trace: Path) -> None:
    planes = parse(trace.read_bytes()).planes
    theirs = jax.profiler.ProfileData.from_file(str(trace))
    for ours, peer in zip(planes, theirs.planes, strict=True):
        assert ours.name == peer.name
        stats = {k: v.decode() if isinstance(v, bytes) else v for k, v in ours.stats.items()}
        assert stats == dict(peer.stats)
        for line, other in zip(ours.lines, peer.lines, strict=True):
            events = list(other.events)
            assert [line.names[i] for i in line.code] == [event.name for event in events]
            # They are floats of nanoseconds there: as near as float64 holds 1e12 picoseconds.
            starts = [event.start_ns for event in events]
            np.testing.assert_allclose(line.start_ps / 1e3, starts, rtol=2**-50)
            lengths = [event.duration_ns for event in events]
            np.testing.assert_allclose(line.duration_ps / 1e3, lengths, rtol=2**-50)
            values: list[dict[str, object]] = [{} for _ in events]
            for name in ours.keys:
                stats = line.stats(name)
                for i, value in zip(stats.owner.tolist(), stats.value.tolist(), strict=True):
                    values[i][name] = stats.texts[value] if stats.texts else value
            assert values == [dict(event.stats) for event in events]


def test_values_of_all_kinds_are_read() -> None:
    stats = {"text": "a", "number": -5, "bytes": b"\xc3\xa4", "real": 0.5}
    plane = (
        Plane("p", **stats).kind("e", {"shared": "s"}).line("l", [("e", 3, 4, stats)], start_ns=2)
    )
    space = parse(encoded(plane, host="h", errors=["e"], warnings=["w"]))
    (line,) = space.planes[0].lines
    assert (space.host, space.notes) == ("h", ("e", "w"))
    assert space.planes[0].stats == stats
    assert line.kinds == ({"shared": "s"},)
    assert (line.name, line.start_ps.tolist(), line.duration_ps.tolist()) == ("l", [2003], [4])
    assert line.stats("text").texts == ("a",)
    assert line.stats("bytes").texts == ("ä",)
    assert line.stats("number").value.tolist() == [-5]
    assert line.stats("real").value.view(np.float64).tolist() == [0.5]
    assert len(line.stats("absent").owner) == 0
    assert space.plane("p") is space.planes[0]
    assert space.plane("q") is None


def test_a_line_without_a_name_has_the_number_of_its_thread() -> None:
    (plane,) = parse(encoded(Plane("p").line("", []).line("", []))).planes
    assert [line.name for line in plane.lines] == ["thread 0", "thread 1"]


def test_times_that_do_not_fit_are_damage() -> None:
    plane = Plane("p").line("l", [("e", 1, 1, {})], start_ns=1 << 56)
    with pytest.raises(Damaged, match="no clock"):
        parse(encoded(plane)).planes[0].lines  # noqa: B018 -- they are read here


def read_all(data: bytes) -> None:
    """Reads what a recording reads."""
    recording = Recording([parse(data)], ["host"])
    assert len(recording.operations) == len(recording.operations.self_ps)
    assert len(recording.spans) >= 0
    assert len(recording.kernels) >= 0
    assert all(isinstance(key, tuple) for key in recording.modules)
    assert len(recording.start_ns) == 1


@given(st.binary(max_size=300))
def test_any_bytes_are_a_trace_or_damaged(data: bytes) -> None:
    try:
        read_all(data)
    except Damaged:
        return


STATS = {"hlo_op": "a::b", "program_id": 3, "kernel_details": "regs:1 grid:1,2,3", "run_id": 4}
SMALL = encoded(
    *(Plane(n).line("XLA Ops", [("%a = b", 5, 9, STATS)]) for n in ("/host:CPU", "/device:TPU:0")),
    Plane("/device:GPU:0").line("Stream", [("a", 5, 9, STATS)], start_ns=7),
    Plane("/host:metadata").kind("m", {"Hlo Proto": b"\x0a\x00"}),
)


@settings(max_examples=60)
@given(st.integers(0, len(SMALL) - 1), st.binary(min_size=1, max_size=3))
def test_a_trace_with_other_bytes_is_read_or_damaged(at: int, data: bytes) -> None:
    try:
        read_all(SMALL[:at] + data + SMALL[at + len(data) :])
    except Damaged:
        return


@pytest.mark.thorough
@pytest.mark.parametrize("file", FIXTURES)
@settings(max_examples=40)  # each takes .2 s
@given(draw=st.data())
def test_a_real_trace_with_other_bytes_is_read_or_damaged(file: Path, draw: st.DataObject) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(draw.draw(st.integers(1, 5))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        read_all(bytes(data))
    except Damaged:
        return
