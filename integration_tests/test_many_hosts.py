# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train --hosts`: real daemons and ranks of this machine, killed and resized."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import forced_devices
from dovetail_stack import runs

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
TINY = (
    *("--pattern", "*.py", "--held-out", "0.2", "--vocab-size", "300"),
    *("--embed", "32", "--depth", "1", "--heads", "2", "--kv-heads", "1", "--mlp", "64"),
    *("--length", "32", "--global-batch", "8", "--guard-sigma", "0"),
)
TIMEOUT_S = 600  # only turns a hang into a failure


class Command:
    """`dovetail train`, and the processes that it has started."""

    def __init__(self, run, *line):
        self.run, self._mark = run, f"DOVETAIL_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        environment = forced_devices.environment(1) | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail_stack", "train", *map(str, line), "--out", str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {name: value},  # all that it starts inherits the mark
        )

    def wait_for(self, steps):
        """Waits until a step is logged, or the command has ended. Returns the daemons by place."""
        end = time.monotonic() + TIMEOUT_S
        while len(_losses(self.run)) < steps and self.process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        return {
            line[line.index("--place") + 1]: pid
            for pid, line in _children(self.process.pid).items()
            if "--place" in line
        }

    def ended(self):
        """Returns exit code, standard output and error. No process of it is left."""
        output, errors = self.process.communicate(timeout=TIMEOUT_S)
        assert [pid for pid in _processes() if self._mark in _environment(pid)] == []
        return self.process.returncode, output, errors


def _processes():
    lines = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                lines[int(entry.name)] = (entry / "cmdline").read_text().split("\0")
    return {pid: line for pid, line in lines.items() if line != [""]}


def _environment(pid):
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return []


def _parent(pid):
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _children(parent):
    return {pid: line for pid, line in _processes().items() if _parent(pid) == parent}


def _rank_on(daemon):
    """The rank of a daemon is a fork of its server of ranks."""
    (server,) = _children(daemon)
    (rank,) = _children(server)
    return rank


def _lines(run, name):
    file = run / name
    text = file.read_text() if file.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _losses(run):
    return {line["step"]: line["loss"] for line in _lines(run, "metrics.jsonl") if "loss" in line}


def _steps_as_read(run):
    return [line["step"] for line in runs.load(run).lines if "loss" in line]


def _started(run):
    starts = [e for e in _lines(run, "launches.jsonl") if e["event"] == "start"]
    return [(event["generation"], event["devices"]["count"]) for event in starts]


def _line(steps, save_every, *options):
    count = ("--steps", steps, "--save-every", save_every)
    return ("pretrain", "--text", TEXT, *TINY, *count, *options)


@pytest.mark.capability("training on several hosts goes on after a rank is killed")
def test_a_killed_rank_is_replaced_and_the_run_is_finished_once(tmp_path):
    steps, run = 120, tmp_path / "run"
    command = Command(run, *_line(steps, 5, "--hosts", "2", "--json", "--trace", "60"))
    daemons = command.wait_for(7)
    os.kill(_rank_on(daemons["1"]), signal.SIGKILL)
    code, output, errors = command.ended()
    assert code == 0, errors
    assert json.loads(output) == {"run": str(run), "finished": True, "export": str(run / "hf")}
    assert "was killed by signal 9 (SIGKILL)" in errors
    assert _steps_as_read(run) == [*range(steps)]
    assert _started(run) == [(0, 2), (1, 2)]
    assert (run / "hf" / "model.safetensors").is_file()
    traced = {file.name for file in (run / "trace" / "plugins" / "profile").glob("*/*.xplane.pb")}
    assert traced == {"process0.xplane.pb", "process1.xplane.pb"}

    (job,) = runs.job(runs.load(run))
    assert (job.outcome, job.hosts) == ("finished", (2,))
    assert {"waiting", "running", "restarting"} <= {state for state, _, _ in job.spans}
    assert any("SIGKILL" in text for _, text in job.log)
    assert 0 < runs.job_goodput(runs.load(run)) < 1


def test_a_refusal_ends_the_command_before_a_host_is_started(tmp_path):
    line = ("pretrain", "--text", tmp_path / "none", "--hosts", "2", "--global-batch", "4")
    code, output, errors = Command(tmp_path / "run", *line).ended()
    assert (code, output) == (1, "")
    assert "the text must be a directory, got" in errors
    assert "generation" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.capability("training goes on with fewer hosts, then with all, with the same loss")
def test_faults_and_sizes_leave_the_losses_as_they_were(tmp_path):
    steps, whole = 120, tmp_path / "whole"
    code, _, errors = Command(whole, *_line(steps, 10, "--hosts", "2")).ended()
    assert code == 0, errors
    wanted = _losses(whole)

    killed = tmp_path / "killed"
    command = Command(killed, *_line(steps, 10, "--hosts", "2"))
    os.kill(_rank_on(command.wait_for(15)["0"]), signal.SIGKILL)
    code, _, errors = command.ended()
    assert code == 0, errors
    assert _started(killed) == [(0, 2), (1, 2)]
    assert _losses(killed) == wanted  # bit for bit

    resized = tmp_path / "resized"
    command = Command(resized, *_line(steps, 10, "--hosts", "2", "--fewest-hosts", "1"))
    os.kill(command.wait_for(15)["1"], signal.SIGKILL)
    code, _, errors = command.ended()
    assert code == 0, errors
    assert _started(resized) == [(0, 2), (1, 1), (2, 2)]
    losses = _losses(resized)
    assert [*losses] == _steps_as_read(resized) == [*range(steps)]
    # Sums over one or two devices are in another order; the first 40 steps, as rounding grows.
    for step in range(40):
        np.testing.assert_allclose(losses[step], wanted[step], rtol=1e-5, err_msg=str(step))


@pytest.mark.slow
@pytest.mark.capability("training on several hosts stops on a signal, saved, and is resumed")
def test_an_interrupted_job_is_saved_and_resumed_on_another_number_of_hosts(tmp_path):
    steps, run = 60, tmp_path / "run"
    command = Command(run, *_line(steps, 1000, "--hosts", "2"))
    command.wait_for(5)
    command.process.send_signal(signal.SIGINT)
    code, _, errors = command.ended()
    assert code == 130, errors
    assert f"Saved. Resume it with: dovetail train --out {run}" in errors
    done = len(_losses(run))
    assert 5 <= done < steps
    assert runs.load(run).state == "interrupted"
    assert runs.job(runs.load(run))[0].outcome == "interrupted"

    code, _, errors = Command(run, "--hosts", "1").ended()
    assert code == 0, errors
    assert [line["step"] for line in _lines(run, "metrics.jsonl") if "loss" in line] == [
        *range(steps)
    ]
    assert runs.load(run).state == "finished"


@pytest.mark.slow
@pytest.mark.capability("a rank that stands still is named with its stack, and the job restarts")
def test_a_rank_that_stands_still_is_reported_and_replaced(tmp_path):
    steps, run = 200, tmp_path / "run"
    # JAX ends the other rank 10 s after the last heartbeat; the deadline must come before that.
    command = Command(run, *_line(steps, 10, "--hosts", "2", "--stall", "6"))
    os.kill(_rank_on(command.wait_for(12)["1"]), signal.SIGSTOP)
    code, _, errors = command.ended()
    assert code == 0, errors
    assert "The job is stuck: " in errors
    assert re.search(r"Suspected: rank \d on local host 1", errors)
    assert "no sign of life, the whole process is stopped" in errors
    assert "_fit.py" in errors  # the stack of the rank that waits
    (job,) = runs.job(runs.load(run))
    assert "stuck" in {state for state, _, _ in job.spans}
    assert _steps_as_read(run) == [*range(steps)]
