# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces are found where the profiler puts them; what is none is refused by name."""

import gzip
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from encoding import Plane
from encoding import trace as encoded

from dovetail_profile.trace.files import load
from dovetail_profile.wire import Damaged

RUN = "2026_01_02_03_04_05"


@pytest.fixture
def folder(tmp_path: Path, trace: Path) -> Path:
    """A folder as jax.profiler writes it, with one run of one host."""
    run = tmp_path / "traces" / "plugins" / "profile" / RUN
    run.mkdir(parents=True)
    shutil.copy(trace, run / "machine.xplane.pb")
    (run / "machine.trace.json.gz").write_bytes(b"")
    return tmp_path / "traces"


def program(name: str, *, host: str = "", start_ns: int = 5) -> bytes:
    """A trace of one run of the instruction `name`."""
    stats = {"hlo_op": name, "program_id": 1}
    plane = Plane("/host:CPU").line("worker", [("run", 10, 20, stats)])
    return encoded(plane, Plane("Task Environment", profile_start_time=start_ns), host=host)


@pytest.mark.parametrize(
    "place", ["", "plugins", "plugins/profile", f"plugins/profile/{RUN}", ".."]
)
def test_a_folder_is_searched_where_the_profiler_writes(folder: Path, place: str) -> None:
    recording = load(folder / place)
    assert recording.hosts == ("machine",) or len(recording.spaces[0].host)
    assert len(recording.operations) == 261  # of both fixtures
    assert recording.notes == ()


def test_a_file_is_read_as_it_is_and_compressed(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "a.xplane.pb.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    plain, unpacked = load(trace), load(str(packed))
    assert plain.operations.start_ps.tolist() == unpacked.operations.start_ps.tolist()
    shutil.copy(trace, tmp_path / "a.xplane.pb")
    assert len(load(tmp_path).spaces) == 1  # two forms of one trace


def test_the_newest_of_several_runs_is_read_and_a_note_says_so(folder: Path) -> None:
    for run, age_s in (("b", 50), ("a", 100)):
        file = folder / "plugins" / "profile" / run / "x.xplane.pb"
        file.parent.mkdir()
        file.write_bytes(program(run))
        now = time.time() + 1000
        os.utime(file, (now - age_s, now - age_s))
    recording = load(folder)
    assert recording.operations.names == ("b",)
    assert recording.notes[0] == "The folder has 3 traces. This is the newest, b."


@pytest.mark.parametrize(("hosts", "names"), [(("x", "y"), ("x", "y")), (("x", "x"), ("p0", "p1"))])
def test_several_hosts_are_one_recording(
    tmp_path: Path, hosts: tuple[str, str], names: tuple[str, str]
) -> None:
    for i, host in enumerate(hosts):
        file = tmp_path / f"p{i}.xplane.pb"
        file.write_bytes(program(f"op{i}", host=host, start_ns=1000 + i))
    recording = load(tmp_path)
    runs = recording.operations
    assert recording.hosts == names
    assert runs.host.tolist() == [0, 1]
    assert [runs.names[code] for code in runs.code] == ["op0", "op1"]
    assert runs.lane.tolist() == [0, 1]
    assert recording.start_ns == (1000, 1001)


@pytest.mark.parametrize("name", ["absent", "empty folder", "other.txt"])
def test_without_a_trace_the_error_says_how_to_make_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty folder").mkdir()
    (tmp_path / "other.txt").write_text("a text\n")
    must = "a trace must be|a folder of traces must hold"
    with pytest.raises(
        ValueError, match=rf"(?s)({must}|must be a trace).*got.*capture\(\)"
    ) as error:
        load(tmp_path / name)
    assert name in str(error.value)


CUTS = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "last byte": lambda data: data[:-1],
    "noise": lambda data: bytes((i * 7919 + i * i) % 256 for i in range(5000)),
    "zeros": lambda data: bytes(5000),
    "half of gzip": lambda data: gzip.compress(data)[:9000],
    "noise in gzip": lambda data: gzip.compress(data)[:100] + bytes(1000),
    "JSON": lambda data: gzip.compress(b'{"traceEvents": []}'),
}


@pytest.mark.parametrize("cut", CUTS)
def test_what_a_kill_leaves_is_refused_by_name(trace: Path, tmp_path: Path, cut: str) -> None:
    file = tmp_path / "cut.xplane.pb"
    file.write_bytes(CUTS[cut](trace.read_bytes()))
    begun = time.process_time()
    with pytest.raises(Damaged, match=f"{re.escape(str(file))} must be a trace.*got bytes.*record"):
        load(file)
    assert time.process_time() - begun < 1


def test_damage_within_a_plane_names_the_file(tmp_path: Path) -> None:
    data = program("name")
    at = data.index(b"worker") + len(b"worker") + 4  # past the start of the line: its one event
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(data[:at] + b"\xff" * 3 + data[at + 3 :])
    with pytest.raises(Damaged, match=f"must be whole.*{re.escape(str(file))}"):
        load(file).operations  # noqa: B018 -- it is read here
