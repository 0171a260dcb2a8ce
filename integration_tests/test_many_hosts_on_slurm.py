# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train --slurm` in an allocation of two nodes, by a stand-in for srun."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from dovetail_cluster import manifest
from dovetail_runs import Run
from dovetail_stack import cli
from train_command import Command, environment, line, losses, started

pytestmark = pytest.mark.thorough

# Becomes the task, with the variables that Slurm gives it.
SRUN = """#!/bin/sh
for word; do
    case "$word" in
        --nodelist=*) SLURMD_NODENAME=${word#*=} ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
export SLURMD_NODENAME SLURM_PROCID=0 SLURM_LOCALID=0
exec "$@"
"""


@pytest.fixture
def allocation(tmp_path):
    """The variables of a batch script on the first of two nodes."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUN)
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[01-02]",
        "SLURMD_NODENAME": "localhost",
    }


def _steps_as_read(run):
    return Run(run).metrics.curve("loss").steps.tolist()


@pytest.mark.thorough("it kills processes of several hosts")
@pytest.mark.capability("training in a Slurm allocation goes on after a step is lost")
def test_a_lost_step_of_slurm_is_replaced_and_the_run_is_finished_once(
    allocation, tmp_path, capsys
):
    steps, run = 100, tmp_path / "run"
    command = Command(run, *line(steps, 20, "--slurm", "--json"), variables=allocation)
    daemons = command.wait_for(22)
    os.kill(daemons["1"], signal.SIGKILL)
    code, output, errors = command.ended()
    assert code == 0, errors
    assert json.loads(output) == {"run": str(run), "finished": True, "export": str(run / "hf")}
    lost = r"rank \d on node02 was lost"  # ranks are in the order in which hosts have joined
    assert re.search(lost, errors)
    assert started(run) == [(0, 2), (1, 2)]
    assert _steps_as_read(run) == [*range(steps)]
    assert (run / "hf" / "model.safetensors").is_file()
    assert cli.main(["runs", "show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert re.search(lost, shown)
    assert "█ running" in shown


@pytest.mark.slow
@pytest.mark.capability("the sbatch script trains a run")
def test_the_batch_script_trains_and_resumes_a_run(allocation, tmp_path):
    run, steps = tmp_path / "run", 20
    train = [sys.executable, "-m", "dovetail_stack", "train"]
    words = [*train, *map(str, line(steps, 10, "--slurm")), "--out", str(run)]
    script = manifest("sbatch", command=words, hosts=2)
    done = _batch(script, allocation)
    assert done.returncode == 0, done.stderr
    assert started(run) == [(0, 2)]
    assert [*losses(run)] == [*range(steps)]

    again = [*train, "--out", str(run), "--steps", str(steps + 5), "--slurm"]
    done = _batch(manifest("sbatch", command=again, hosts=2), allocation)
    assert done.returncode == 0, done.stderr
    assert _steps_as_read(run) == [*range(steps + 5)]


def _batch(script, allocation):
    return subprocess.run(
        ["bash"],
        input=script,
        env={**environment(), **allocation},
        capture_output=True,
        text=True,
        timeout=600,
    )
