# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Slurm: host lists, and steps by a stand-in for srun that checks how it is called."""

import os
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from dovetail_cluster import Cluster, manifest
from dovetail_cluster.backends import base
from dovetail_cluster.backends.slurm import Slurm, expand
from dovetail_cluster.marks import marked_processes

# Does what srun does with these options, on this machine: checks them, says so in the environment
# of the task, runs the task, ends it at SIGINT, and exits as the task did.
SRUN = """
    import os, signal, subprocess, sys
    options = [a for a in sys.argv[1:sys.argv.index(sys.executable)]]
    given = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    node = given.pop("nodelist")
    assert given == {"nodes": "1", "ntasks": "1", "overlap": "", "kill-on-bad-exit": "0",
                     "quit-on-interrupt": "", "export": "ALL"}, given
    assert not any(os.environ.get("DOVETAIL_CLUSTER_KEY", "?") in word for word in sys.argv)
    interrupted = []
    def interrupt(number, frame):
        if not os.environ.get("STAND_IN_DEAF"):
            interrupted.append(number)
            task.kill()
    # Both before the task, which may say that it runs before this program goes on.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, lambda number, frame: task.terminate())
    task = subprocess.Popen(sys.argv[1 + len(options):], env={**os.environ,
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": node})
    code = task.wait()
    sys.exit(130 if interrupted else code if code >= 0 else 128 - code)
"""


@pytest.fixture
def allocation(tmp_path, monkeypatch, request):
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(SRUN)}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[01-02]")
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    for name, value in getattr(request, "param", {}).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def program(path, body):
    """A line that runs `body`, which may write to the named pipe at `path`."""
    os.mkfifo(path)
    return [
        "-c",
        f"import os, sys, signal\nout = open({str(path)!r}, 'w')\n{textwrap.dedent(body)}",
    ]


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("tux", ["tux"]),
        ("tux1,tux2", ["tux1", "tux2"]),
        ("a[1-3,07],b", ["a1", "a2", "a3", "a07", "b"]),
        ("node[001-003]", ["node001", "node002", "node003"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("n[9-11].site", ["n9.site", "n10.site", "n11.site"]),
        ("rack[0-1]n[1,3]", ["rack0n1", "rack0n3", "rack1n1", "rack1n3"]),
        ("gpu-a[5],cpu-b", ["gpu-a5", "cpu-b"]),
        ("x[1-2], y", ["x1", "x2", "y"]),
    ],
)
@pytest.mark.capability("a Slurm node list is expanded")
def test_host_lists(nodelist, names):
    assert expand(nodelist) == names


@pytest.mark.parametrize("nodelist", ["a[1-3", "a1]", "a[3-1]", "a[x]", "a[]", "a[1-2-3]", "a[-1]"])
def test_bad_host_lists_are_named(nodelist):
    with pytest.raises(ValueError, match=r"rising ranges, got .*; write 'a\[1-3,07\],b'") as caught:
        expand(nodelist)
    assert nodelist in str(caught.value)


@pytest.mark.capability("daemons are placed as Slurm job steps")
def test_a_step_runs_with_the_environment_and_its_exit_code_is_polled(allocation):
    backend = Slurm()
    assert isinstance(backend, base.Backend)
    assert (backend.count, backend.nodes, backend.listen) == (2, ("node01", "node02"), "127.0.0.1")
    line = program(
        allocation / "pipe",
        """
        print(os.environ["SLURMD_NODENAME"], os.environ["DOVETAIL_CLUSTER_KEY"], file=out)
        out.close()
        sys.exit(3)
        """,
    )
    placed = backend.place(line, {"DOVETAIL_CLUSTER_KEY": "12" * 32}, place=1)
    assert isinstance(placed, base.Placed)
    assert placed.name == "node02"
    assert (allocation / "pipe").read_text() == f"node02 {'12' * 32}\n"
    placed._process.wait(120)
    assert placed.poll() == 3
    backend.close()


@pytest.fixture
def task(allocation):
    """A step whose task waits, the task's process id and the lines that the task writes."""
    line = program(
        allocation / "pipe",
        """
        signal.signal(signal.SIGTERM, lambda number, frame: os.write(out.fileno(), b"notice\\n"))
        print(os.getpid(), file=out, flush=True)
        while True:
            signal.pause()
        """,
    )
    placed = Slurm().place(line, {}, place=0)
    with open(allocation / "pipe") as lines:
        yield placed, int(lines.readline()), lines
        placed.kill()


def test_kill_ends_the_step_and_its_task(task):
    placed, pid, lines = task
    assert placed.poll() is None
    placed.kill()
    assert placed.poll() == 130
    assert lines.read() == ""  # the task's end of the pipe is closed
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    placed.kill()  # does nothing now


@pytest.mark.parametrize("allocation", [{"STAND_IN_DEAF": "1"}], indirect=True)
def test_kill_ends_a_srun_that_does_not_answer(task, monkeypatch):
    monkeypatch.setattr("dovetail_cluster.backends.slurm._KILL_S", 0.05)
    placed, pid, lines = task
    placed.kill()
    assert placed.poll() == -signal.SIGKILL
    os.kill(pid, signal.SIGKILL)  # Slurm does this for its tasks
    assert lines.read() == ""


@pytest.mark.capability("Slurm's SIGTERM reaches the daemon")
def test_sigterm_at_the_step_reaches_the_task(task):
    placed, _pid, lines = task
    placed._process.send_signal(signal.SIGTERM)
    assert lines.readline() == "notice\n"


def training():
    """A function that is pickled by its value: ranks cannot import this file."""

    def train(ctx):
        """Sums over the ranks, in an environment where JAX finds no Slurm."""
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        assert not [name for name in os.environ if name.startswith("SLURM_")]
        return float(multihost_utils.process_allgather(jnp.float32(ctx.rank + 1)).sum())

    return train


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a job on a Slurm allocation")
def test_a_job_runs_and_survives_a_lost_step(allocation, monkeypatch, job):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with marked_processes() as left:
        with Cluster.slurm(logs="none") as cluster:
            assert cluster.run(training()).values == (3.0, 3.0)
            job.start(cluster)
            job.wait(step=2)
            cluster.host(1).kill_daemon()  # srun ends with it, and the step is made again
            job.wait(generation=1, step=4)
            assert job.end().generations == 2
        assert left() == []


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("the sbatch script runs a job")
def test_the_manifest_runs_in_the_allocation(allocation):
    body = """
        from dovetail_cluster import Cluster
        with Cluster.slurm(logs="none") as cluster:
            print(cluster.run(lambda ctx: ctx.rank).values)
    """
    text = manifest("sbatch", command=[sys.executable, "-c", textwrap.dedent(body)], hosts=2)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        ["bash"], input=text, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "(0, 1)\n"), done.stderr


def test_outside_an_allocation_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(RuntimeError, match=r"allocation, got no SLURM_JOB_NODELIST; .*sbatch"):
        Slurm()


def test_without_srun_the_error_says_where_it_was_sought(allocation, monkeypatch):
    monkeypatch.setenv("PATH", str(allocation / "empty"))
    with pytest.raises(RuntimeError, match=r"srun, got none on PATH; add"):
        Slurm()


def test_a_node_without_an_address_is_named(allocation, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "no-such-node.invalid")
    with pytest.raises(RuntimeError, match=r"must have an address, got 'no-such-node.invalid'"):
        Slurm()
