# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train` on two processes over gloo, one device each, beside one process with two."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import forced_devices

pytestmark = pytest.mark.thorough

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
GATED = str(Path(__file__).parent / "programs" / "gated.py")
STEPS = 8
TINY = (
    *("--pattern", "*.py", "--held-out", "0.2", "--vocab-size", "300", "--steps", str(STEPS)),
    *("--embed", "32", "--depth", "1", "--heads", "2", "--kv-heads", "1", "--mlp", "64"),
    *("--length", "32", "--global-batch", "8", "--save-every", "3"),
)
TIMEOUT_S = 300  # only turns a hang into a failure


def _start(*line, devices=1, program=("-m", "dovetail_stack")):
    return subprocess.Popen(
        [sys.executable, *program, "train", *map(str, line)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=forced_devices.environment(devices) | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
    )


def _ended(process):
    output, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output, errors


@pytest.fixture
def address():
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def _lines(run, name):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


@pytest.mark.capability("a run of two processes, stopped, is finished by one")
@pytest.mark.slow
def test_two_processes_are_stopped_and_one_finishes_their_run(address, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    new = ("pretrain", "--text", TEXT, *TINY)
    code, _, errors = _ended(_start(*new, "--out", whole, "--fsdp", "2", devices=2))
    assert code == 0, errors

    of_both = (*new, "--out", run, "--json", "--coordinator", address, "--processes", "2")
    of_both = (*of_both, "--samples", "3")
    first = _start(*of_both, "--process", "0", program=(GATED, "4"))
    second = _start(*of_both, "--process", "1")
    printed = []
    while not printed or not printed[-1].endswith("logged 4\n"):  # where all but the JSON goes
        printed.append(first.stderr.readline())
        assert printed[-1], "".join(printed)
    first.send_signal(signal.SIGTERM)
    first.stdin.write("\n")
    first.stdin.flush()
    (code, output, errors), (other_code, other_output, other_errors) = _ended(first), _ended(second)
    assert (code, other_code) == (130, 130), "".join(printed) + errors + other_errors
    assert json.loads(output) == {"run": str(run), "finished": False, "export": None}
    assert other_output == ""
    stopped = len([line for line in _lines(run, "metrics.jsonl") if "loss" in line])
    assert 4 < stopped < STEPS

    code, _, errors = _ended(_start("--out", run, "--fsdp", "2", devices=2))
    assert code == 0, errors
    logged, wanted = (
        {line["step"]: line["loss"] for line in _lines(r, "metrics.jsonl") if "loss" in line}
        for r in (run, whole)
    )
    assert [line["step"] for line in _lines(run, "metrics.jsonl") if "loss" in line] == [
        *range(STEPS)
    ]
    # Equal rows and parameters on two devices; sums over processes are in another order.
    np.testing.assert_allclose([*logged.values()], [*wanted.values()], rtol=1e-5)
    assert [line["step"] for line in _lines(run, "media.jsonl")] == [3, 6]
    assert [event["event"] for event in _lines(run, "launches.jsonl")] == ["start", "end"] * 2
    weights, expected = (load_file(r / "hf" / "model.safetensors") for r in (run, whole))
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        # Adam divides by the root of small squares: rounding of 1e-7 grows over the steps.
        np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_failure_of_process_0_ends_the_other_with_its_message(address, tmp_path):
    line = ("pretrain", "--text", tmp_path / "none", "--out", tmp_path / "run")
    of_both = (*line, "--coordinator", address, "--processes", "2", "--global-batch", "4")
    processes = [_start(*of_both, "--process", i) for i in range(2)]
    (code, _, errors), (other_code, output, other_errors) = map(_ended, processes)
    assert (code, other_code) == (2, 2), errors + other_errors
    assert "the text must be a directory, got" in errors
    assert "process 0 failed: the text must be a directory, got" in other_errors
    assert output == ""


def test_a_directory_that_is_not_shared_is_refused_by_both(address, tmp_path):
    line = ("pretrain", "--text", TEXT, *TINY, "--coordinator", address, "--processes", "2")
    processes = [_start(*line, "--out", tmp_path / f"run{i}", "--process", i) for i in range(2)]
    for code, _, errors in map(_ended, processes):
        assert code == 1
        assert "all processes must share a directory, got" in errors
        assert "without the run.json of process 0 in processes [1]: take a directory" in errors
    assert not (tmp_path / "run1").exists()


@pytest.mark.slow
def test_two_processes_go_back_and_leave_out_batches(address, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    code, _, errors = _ended(_start("pretrain", "--text", TEXT, *TINY, "--out", run))
    assert code == 0, errors
    shutil.copytree(run, other)
    asked = ("--rewind", "3", "--leave-out", "4:6")
    of_both = (*asked, "--out", run, "--coordinator", address, "--processes", "2")
    both = [_start(*of_both, "--process", i) for i in range(2)]
    for process in both:
        code, _, errors = _ended(process)
        assert code == 0, errors
    code, _, errors = _ended(_start(*asked, "--out", other))
    assert code == 0, errors
    settings = [json.loads((out / "run.json").read_text())["settings"] for out in (run, other)]
    assert settings[0]["leave_out"] == settings[1]["leave_out"] == [[4, 6]]
    one, two = (
        {x["step"]: x["loss"] for x in _lines(out, "metrics.jsonl") if "loss" in x}
        for out in (run, other)
    )
    assert one.keys() == two.keys() == set(range(STEPS))
    # Sums over two processes are rounded in another order: some ulps of float32, a few steps long.
    np.testing.assert_allclose(list(one.values()), list(two.values()), rtol=1e-5)
