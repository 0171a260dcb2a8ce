# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train --hosts`: real daemons and ranks of this machine, killed and resized."""

import json
import os
import re
import signal
import time

import numpy as np
import pytest

from dovetail_runs import Run
from train_command import TIMEOUT_S, Command, line, lines, losses, rank_on, started


def _steps_as_read(run):
    return Run(run).metrics.curve("loss").steps.tolist()


@pytest.mark.thorough("it kills processes of several hosts")
@pytest.mark.capability("training on several hosts goes on after a rank is killed")
def test_a_killed_rank_is_replaced_and_the_run_is_finished_once(tmp_path):
    steps, run = 120, tmp_path / "run"
    command = Command(run, *line(steps, 20, "--hosts", "2", "--json", "--profile", "60:5"))
    daemons = command.wait_for(22)
    os.kill(rank_on(daemons["1"]), signal.SIGKILL)
    code, output, errors = command.ended()
    assert code == 0, errors
    assert json.loads(output) == {"run": str(run), "finished": True, "export": str(run / "hf")}
    assert "was killed by signal 9 (SIGKILL)" in errors
    assert _steps_as_read(run) == [*range(steps)]
    assert started(run) == [(0, 2), (1, 2)]
    assert (run / "hf" / "model.safetensors").is_file()
    traced = {file.name for file in (run / "trace" / "plugins" / "profile").glob("*/*.xplane.pb")}
    assert traced == {"process0.xplane.pb", "process1.xplane.pb"}

    (job,) = Run(run).job
    assert (job.outcome, job.hosts) == ("finished", (2,))
    assert {"waiting", "running", "restarting"} <= {state for state, _, _ in job.spans}
    assert any("SIGKILL" in text for _, text in job.log)
    assert 0 < Run(run).job_goodput < 1


def test_a_refusal_ends_the_command_before_a_host_is_started(tmp_path):
    given = ("--text", tmp_path / "none", "--hosts", "2", "--global-batch", "4")
    code, output, errors = Command(tmp_path / "run", "pretrain", *given).ended()
    assert (code, output) == (2, "")
    assert "the text must be a directory, got" in errors
    assert "generation" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.capability("a second job on the directory of a run is refused while the first lives")
def test_of_two_jobs_on_one_run_the_second_is_refused_and_a_killed_one_holds_nothing(tmp_path):
    steps, run = 60, tmp_path / "run"
    asked = line(steps, 5, "--hosts", "2")
    first, end = Command(run, *asked), time.monotonic() + TIMEOUT_S
    while not Run(run).is_running():
        assert time.monotonic() < end
        time.sleep(0.02)
    for _ in range(2):  # in its start-up, and in its steps
        code, output, errors = Command(run, *asked).ended()
        assert (code, output) == (1, "")
        assert "a run must have one process at a time, got" in errors
        assert "generation" not in errors
        first.wait_for(6)
    first.process.kill()
    first.ended()
    code, _, errors = Command(run, "--hosts", "2").ended()
    assert code == 0, errors
    assert _steps_as_read(run) == [*range(steps)]
    events = [event["event"] for event in lines(run, "launches.jsonl")]
    assert events == ["start", "start", "end"]  # of the first and of the third


@pytest.mark.slow
@pytest.mark.capability("a loss that is not finite ends a job on several hosts as on one")
def test_a_loss_that_is_not_finite_ends_the_job_once(tmp_path):
    run = tmp_path / "run"
    rates = ("--learning-rate", "1e30", "--matrix-learning-rate", "1e30")
    code, output, errors = Command(run, *line(40, 5, "--hosts", "2", *rates)).ended()
    assert (code, output) == (1, "")
    assert "Traceback" not in errors
    assert errors.count("dovetail: error: at most max_skips=10 steps in a row") == 1
    skipped = re.findall(r"\[rank (\d)\] WARNING: skipped an update: .* at step (\d+)", errors)
    assert skipped == [("0", str(step)) for step in range(2, 12)]
    assert started(run) == [(0, 2)]
    loaded = Run(run)
    assert loaded.state == "failed"
    assert loaded.job[0].outcome == "failed"


@pytest.mark.slow
@pytest.mark.capability("training goes on with fewer hosts, then with all, with the same loss")
def test_faults_and_sizes_leave_the_losses_as_they_were(tmp_path):
    steps, whole = 120, tmp_path / "whole"
    code, _, errors = Command(whole, *line(steps, 10, "--hosts", "2")).ended()
    assert code == 0, errors
    wanted = losses(whole)

    killed = tmp_path / "killed"
    command = Command(killed, *line(steps, 10, "--hosts", "2"))
    os.kill(rank_on(command.wait_for(15)["0"]), signal.SIGKILL)
    code, _, errors = command.ended()
    assert code == 0, errors
    assert started(killed) == [(0, 2), (1, 2)]
    assert losses(killed) == wanted  # bit for bit

    resized = tmp_path / "resized"
    command = Command(resized, *line(steps, 10, "--hosts", "2", "--fewest-hosts", "1"))
    os.kill(command.wait_for(15)["1"], signal.SIGKILL)
    code, _, errors = command.ended()
    assert code == 0, errors
    assert started(resized) == [(0, 2), (1, 1), (2, 2)]
    made = losses(resized)
    assert [*made] == _steps_as_read(resized) == [*range(steps)]
    # Sums over one or two devices are in another order; the first 40 steps, as rounding grows.
    for step in range(40):
        np.testing.assert_allclose(made[step], wanted[step], rtol=1e-5, err_msg=str(step))


@pytest.mark.slow
@pytest.mark.capability("training on several hosts stops on a signal, saved, and is resumed")
def test_an_interrupted_job_is_saved_and_resumed_on_another_number_of_hosts(tmp_path):
    steps, run = 60, tmp_path / "run"
    command = Command(run, *line(steps, 1000, "--hosts", "2"))
    command.wait_for(5)
    command.process.send_signal(signal.SIGINT)
    code, _, errors = command.ended()
    assert code == 130, errors
    assert f"Saved. Resume it with: dovetail train --out {run}" in errors
    done = len(losses(run))
    assert 5 <= done < steps
    assert Run(run).state == "interrupted"
    assert Run(run).job[0].outcome == "interrupted"

    code, _, errors = Command(run, "--hosts", "1").ended()
    assert code == 0, errors
    assert [entry["step"] for entry in lines(run, "metrics.jsonl") if "loss" in entry] == [
        *range(steps)
    ]
    assert Run(run).state == "finished"


@pytest.mark.slow
@pytest.mark.capability("a rank that stands still is named with its stack, and the job restarts")
def test_a_rank_that_stands_still_is_reported_and_replaced(tmp_path):
    steps, run = 200, tmp_path / "run"
    # JAX ends the other rank 10 s after the last heartbeat; the deadline must come before that.
    command = Command(run, *line(steps, 10, "--hosts", "2", "--stall", "6"))
    os.kill(rank_on(command.wait_for(12)["1"]), signal.SIGSTOP)
    code, _, errors = command.ended()
    assert code == 0, errors
    assert "The job is stuck: " in errors
    assert re.search(r"Suspected: rank \d on local host 1", errors)
    assert "no sign of life, the whole process is stopped" in errors
    assert "_fit.py" in errors  # the stack of the rank that waits
    (job,) = Run(run).job
    assert "stuck" in {state for state, _, _ in job.spans}
    assert _steps_as_read(run) == [*range(steps)]
