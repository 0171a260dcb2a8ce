# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Launches of a run: what is recorded of them, and how they end."""

import contextlib
import json
import logging
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from importlib import metadata

import pytest

from dovetail_runs import Launch, Run, read_metrics
from dovetail_runs.record import lock, machine


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "runs" / "first")


def _ends(run):
    ends = [event for event in run.events if event["event"] == "end"]
    return [(end["outcome"], end.get("error")) for end in ends]


def test_a_start_and_its_end_are_recorded(run, tmp_path):
    devices = {"platform": "gpu", "kind": "H100", "count": 8}
    options = {"command": ["train.py", "--out", "a run"], "devices": devices}
    with run.launch({"rate": 0.1}, recipe="toy", seeds={"seed": 3}, **options) as launch:
        (begun,) = run.events
        assert run.state == "running"
        launch.write(0, {"loss": 1.0})
        assert run.metrics.curve("loss").last() == (0, 1.0)  # while it runs
    again, ended = run.events
    assert begun == again == run.launches[0]
    assert begun["command"] == "train.py --out 'a run'"
    assert (begun["host"], begun["cores"]) == (platform.node(), os.cpu_count())
    assert (begun["devices"], begun["seeds"]) == (devices, {"seed": 3})
    assert begun["versions"]["numpy"] == metadata.version("numpy")
    assert begun["git"].keys() == {"directory", "code"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", begun["time"])
    assert ended == {"event": "end", "time": ended["time"], "outcome": "finished"}
    assert (run.recipe, run.settings, run.state) == ("toy", {"rate": 0.1}, "finished")
    assert sorted(path.name for path in run.path.iterdir()) == [
        *(".lock", "launches.jsonl", "metrics.jsonl", "run.json")
    ]


def test_the_command_is_that_of_the_process_and_the_commit_that_of_the_code(run, tmp_path):
    with run.launch(code=__file__):
        pass
    (begun,) = run.launches
    assert shlex.split(begun["command"]) == sys.orig_argv
    assert begun["git"]["code"] == machine.commit_of_file(type(run.path)(__file__))
    assert begun["devices"] is None


def test_no_value_of_the_environment_is_recorded(run, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cr3t-value")
    with run.launch({"a": 1}):
        pass
    for path in run.path.iterdir():
        assert b"s3cr3t-value" not in path.read_bytes()


@pytest.mark.parametrize(
    "error, outcome, reason",
    [
        (ValueError("a disk is full\nsecond line"), "failed", "a disk is full"),
        (ValueError(), "failed", "ValueError"),
        (KeyboardInterrupt(), "interrupted", None),
        (SystemExit(), "finished", None),
        (SystemExit(0), "finished", None),
        (SystemExit(3), "failed", "3"),
        (SystemExit("no data"), "failed", "no data"),
    ],
    ids=repr,
)
def test_an_error_ends_the_launch_by_its_kind_and_is_raised(run, error, outcome, reason):
    with pytest.raises(type(error)) as raised, run.launch():
        raise error
    assert raised.value is error
    assert _ends(run) == [(outcome, reason)]
    assert run.state == outcome
    assert lock.held == set()


def test_a_launch_that_was_stopped_on_request_says_so(run):
    with run.launch() as launch:
        launch.outcome = "interrupted"

    def stop():
        with run.launch() as launch:
            launch.outcome = "interrupted"
            sys.exit()

    with pytest.raises(SystemExit):
        stop()
    assert _ends(run) == [("interrupted", None)] * 2


def test_an_unknown_outcome_is_refused_and_recorded_as_a_failure(run):
    refused = "must be one of finished, interrupted, failed, got outcome='done': set launch.outc"
    with pytest.raises(ValueError, match=refused), run.launch() as launch:
        launch.outcome = "done"
    ((outcome, reason),) = _ends(run)
    assert outcome == "failed"
    assert "outcome='done'" in reason


def test_a_later_launch_goes_on_in_the_next_generation(run):
    for begin in (0, 2):
        with run.launch() as launch:
            for step in range(begin, begin + 3):
                launch.write(step, {"loss": float(10 * begin + step)})
    assert run.metrics.lines.generations.tolist() == [0, 0, 0, 1, 1, 1]
    assert run.metrics.curve("loss").values.tolist() == [0.0, 1.0, 22.0, 23.0, 24.0]


def test_the_file_is_closed_at_the_end_and_may_be_before(run):
    with run.launch() as launch:
        launch.write(0, {"loss": 1.0})
        launch.close()
        launch.write(1, {"loss": 1.0})
    assert run.metrics.lines.generations.tolist() == [0, 0]


def test_other_processes_record_nothing(run):
    with run.launch({"a": object()}, process=1) as launch:
        launch.write(0, {"loss": 1.0})
        launch.outcome = "interrupted"
        launch.close()
    assert isinstance(launch, Launch)
    assert not run.path.parent.exists()


def test_versions_that_changed_are_warned_of_in_one_line(run, caplog):
    with run.launch():
        pass
    path = run.path / "launches.jsonl"
    first, end = path.read_text().splitlines()
    event = json.loads(first)
    event["versions"] |= {"numpy": "0.0.1", "jax-rocm7-plugin": "9"}
    path.write_text(f"{json.dumps(event)}\n{end}\n")
    with caplog.at_level(logging.WARNING), run.launch():
        pass
    (message,) = caplog.messages
    assert f"numpy 0.0.1 is now {metadata.version('numpy')}" in message
    assert "jax-rocm7-plugin 9 is now none" in message
    assert "python" not in message
    assert "\n" not in message


def test_the_same_versions_say_nothing(run, caplog):
    for _ in range(2):
        with caplog.at_level(logging.WARNING), run.launch():
            pass
    assert caplog.records == []


@pytest.mark.parametrize(
    "options, error",
    [
        ({"settings": {"a": object()}}, TypeError),
        ({"settings": 3}, TypeError),
        ({"settings": {"a": 1}, "devices": {"kind": object()}}, TypeError),
        ({"settings": {"a": 1}, "seeds": {"seed": 0.5}}, TypeError),
        ({"settings": {"a": 1}, "changeable": "a"}, TypeError),
    ],
    ids=["setting", "settings", "devices", "seeds", "changeable"],
)
@pytest.mark.usefixtures("unchecked")
def test_a_refused_first_launch_leaves_no_folder(run, tmp_path, options, error):
    with pytest.raises(error), run.launch(**options):
        pytest.fail("it was launched")
    assert list(tmp_path.iterdir()) == []
    assert lock.held == set()


def test_a_second_launch_in_this_process_is_refused_by_name(run):
    with run.launch({"a": 1}) as launch:
        refused = "one launch at a time, got .*first.*, which this process has launched: end that"
        with pytest.raises(RuntimeError, match=refused), Run(run.path).launch({"a": 1}):
            pytest.fail("two launches have the run")
        launch.write(0, {"loss": 1.0})
        assert run.state == "running"
    assert [event["event"] for event in run.events] == ["start", "end"]


PROGRAM = """
import sys
from dovetail_runs import Run
with Run(sys.argv[1]).launch({"a": 1}, command=["other"]) as launch:
    launch.write(0, {"loss": 1.0})
    print("launched", flush=True)
    sys.stdin.read()
"""


def _launched(run):
    line = [sys.executable, "-c", PROGRAM, str(run.path)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"launched\n"
    return process


def test_a_second_process_is_refused_by_name_until_the_first_is_killed(run):
    with _launched(run) as process:
        assert run.state == "running"
        refused = "one process at a time, got .*first.*, which another has: wait for it, or stop"
        with pytest.raises(RuntimeError, match=refused), run.launch({"a": 1}):
            pytest.fail("two processes have the run")
        process.kill()
    assert run.state == "killed"
    with run.launch({"a": 1}) as launch:
        launch.write(0, {"loss": 0.5})
    assert run.state == "finished"
    assert [event["event"] for event in run.events] == ["start", "start", "end"]
    assert run.metrics.lines.generations.tolist() == [0, 1]
    assert run.damage == []


@pytest.mark.thorough
def test_a_process_that_ctrl_c_stops_records_an_interruption(run):
    with _launched(run) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    assert run.state == "interrupted"


def test_a_full_disk_is_the_error_that_is_raised(run, full_disk):
    with run.launch({"a": 1}) as launch:
        launch.write(0, {"loss": 1.0})

    def fill():
        with full_disk(10**5), run.launch({"a": 1}) as launch:
            for step in range(10**5):
                launch.write(step, {"loss": 0.5})

    with pytest.raises(OSError, match="File too large"):
        fill()
    assert _ends(run)[1:] == [("failed", "[Errno 27] File too large")]
    assert lock.held == set()
    with run.launch({"a": 1}) as launch:
        launch.write(0, {"loss": 2.0})
    assert run.damage == []
    assert read_metrics(run.path / "metrics.jsonl").lines.generations[-1] == 2


def test_an_error_is_raised_also_if_the_disk_has_no_room_for_its_record(run, full_disk):
    def fail():
        with contextlib.ExitStack() as stack, run.launch():
            size = (run.path / "launches.jsonl").stat().st_size
            stack.enter_context(full_disk(size + 10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (run.state, run.damage) == ("killed", [])  # what was recorded of its end is torn


def test_a_disk_that_is_full_at_first_is_the_error(run, full_disk):
    with full_disk(0), pytest.raises(OSError, match="File too large"), run.launch({"a": 1}):
        pytest.fail("it was launched")
    with run.launch({"a": 1}) as launch:
        launch.write(0, {"loss": 1.0})
    assert (run.state, run.damage) == ("finished", [])


def test_a_torn_last_event_is_removed_by_the_next_launch(run):
    with run.launch():
        pass
    path = run.path / "launches.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "sta')
    assert len(run.events) == 2
    with run.launch():
        pass
    assert path.read_bytes().startswith(whole + b'{"event": "start", "time"')
    assert (len(run.events), run.damage) == (4, [])


def test_one_launch_goes_on_with_the_lock_of_its_run(run):
    with run.locked():
        with run.launch({"a": 1}) as launch:
            launch.write(0, {"loss": 1.0})
            with pytest.raises(RuntimeError, match="which this process has launched"):
                run.launch({"a": 1})
            with pytest.raises(RuntimeError, match="which this process has launched"):
                Run(run.path).launch({"a": 1})
        assert run.is_running()  # until the block ends
        with pytest.raises(RuntimeError, match="which this process has launched"):
            run.launch({"a": 1})
    assert _ends(run) == [("finished", None)]
    assert lock.held == set()
