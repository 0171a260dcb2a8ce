# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import builtins
import gc
import math
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

from dovetail_train.logs.tensorboard import TensorBoard


def _events(*paths):
    """Every event of the files: length, checksum, event, checksum."""
    from tensorboardX.proto import event_pb2

    for path in paths:
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            yield event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16


def _points(directory):
    """(tag, step) -> values: those that TensorBoard shows, where a session hides later steps."""
    points = {}
    for event in _events(*sorted(directory.iterdir())):
        if event.session_log.status == event.session_log.START:
            points = {key: value for key, value in points.items() if key[1] < event.step}
        for value in event.summary.value:
            points.setdefault((value.tag, event.step), []).append(value.simple_value)
    return points


def test_each_scalar_is_a_point_under_its_name(tmp_path):
    run = tmp_path / "deep" / "run"
    sink = TensorBoard(run, now=lambda: 12.5)
    sink.write(0, {"loss": 0.1, "loss/z": 2.0})
    sink.write(7, {"eval/bits_per_byte": 1.5})
    assert _points(run) == {
        ("loss", 0): [np.float32(0.1)],
        ("loss/z", 0): [2.0],
        ("eval/bits_per_byte", 7): [1.5],
    }
    assert [e.wall_time for e in _events(*run.iterdir()) if e.summary.value] == [12.5, 12.5]
    sink.close()


def test_numbers_that_are_not_finite_are_written_as_they_are(tmp_path):
    sink = TensorBoard(tmp_path)
    sink.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    sink.close()
    points = _points(tmp_path)
    assert math.isnan(points["a", 1][0])
    assert (points["b", 1], points["c", 1]) == ([math.inf], [1.0])


def _resume(directory, *, first, last):
    sink = TensorBoard(directory)
    for step in range(first, last):
        sink.write(step, {"loss": float(step)})
    sink.close()


def test_a_resumed_run_neither_doubles_nor_loses_a_point(tmp_path):
    _resume(tmp_path, first=0, last=4)
    sink = TensorBoard(tmp_path)
    # The evaluation of step 4 came before the save from which the next run continues.
    sink.write(4, {"eval/x": 40.0})
    for step in range(4, 7):
        sink.write(step, {"loss": float(step), "only_once": 1.0})
    sink.close()
    _resume(tmp_path, first=4, last=6)
    points = _points(tmp_path)
    assert {step: points["loss", step] for step in range(6)} == {n: [float(n)] for n in range(6)}
    assert points["eval/x", 4] == [40.0]
    # Steps 5 and 6 are of a past that was given up.
    assert {step for _, step in points} == set(range(6))
    assert [step for tag, step in points if tag == "only_once"] == [4]


def test_a_run_from_step_zero_begins_anew(tmp_path):
    _resume(tmp_path, first=0, last=5)
    _resume(tmp_path, first=0, last=2)
    assert _points(tmp_path) == {("loss", 0): [0.0], ("loss", 1): [1.0]}


def test_writing_goes_on_after_a_close(tmp_path):
    sink = TensorBoard(tmp_path)
    sink.write(1, {"a": 1.0})
    sink.close()
    sink.close()
    sink.write(2, {"a": 2.0})
    sink.close()
    assert _points(tmp_path) == {("a", 1): [1.0], ("a", 2): [2.0]}


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_sink_that_is_forgotten_closes_its_file(tmp_path):
    sink = TensorBoard(tmp_path)
    sink.write(1, {"a": 1.0})
    file = sink._file
    del sink
    gc.collect()
    assert file.closed


def test_a_torn_record_of_a_killed_run_is_passed_over(tmp_path):
    _resume(tmp_path, first=3, last=5)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0] + 16  # the record of the file's version
    for cut in (len(data) - 1, len(data) - 30, size + 5, size):
        path.write_bytes(data[:cut])
        sink = TensorBoard(tmp_path)
        sink.write(4, {"loss": 9.0, "other": 8.0})
        sink.close()
        newest = max(tmp_path.iterdir())
        assert newest != path
        assert [v.tag for e in _events(newest) for v in e.summary.value] == ["loss", "other"]
        newest.unlink()


PROGRAM = """
import sys, os, signal
from dovetail_train.logs.tensorboard import TensorBoard
sink = TensorBoard(sys.argv[1])
for step in range(5):
    sink.write(step, {"loss": float(step)})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_a_killed_process_loses_no_point(tmp_path):
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], env=os.environ)
    assert result.returncode == -signal.SIGKILL
    assert _points(tmp_path) == {("loss", n): [float(n)] for n in range(5)}


def test_without_tensorboardx_the_message_says_what_to_type(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("tensorboardX"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs tensorboardX, got no mod.*pip install dovetail-train\[te"
    ):
        TensorBoard(tmp_path)
