# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The public face, on one local cluster of three hosts."""

import logging
import re
import signal
import socket
import threading
import time

import pytest

from dovetail_cluster import Cluster, Elastic, HostsError, JobError, RankError
from dovetail_cluster.wire import split


@pytest.mark.capability("one program on all hosts")
def test_all_hosts_are_one_program(cluster, capfd):
    def train(ctx, base):
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec

        sharding = NamedSharding(ctx.mesh(data=-1), PartitionSpec("data"))
        values = jax.make_array_from_callback(
            (ctx.hosts,), sharding, lambda at: jnp.array([base ** (1 + jax.process_index())])
        )
        return ctx.rank, jax.process_count(), float(jax.jit(jnp.sum)(values))

    result = cluster.run(train, 3.0)
    assert result.values == tuple((rank, 3, 3.0 + 9.0 + 27.0) for rank in range(3))
    assert result.value == result.values[0]
    assert result.generations == 1
    spans = result.timeline
    wall = spans[-1][2] - spans[0][1]
    assert sum(result.states.values()) == pytest.approx(wall)
    assert "Gloo" not in capfd.readouterr().err


def test_the_next_run_starts_on_the_warm_servers(cluster):
    assert cluster.run(lambda ctx: ctx.generation).values == (0, 0, 0)


@pytest.mark.thorough("it waits for a run to end")
def test_each_new_state_is_watched_and_an_exception_there_ends_the_run(cluster):
    seen = []
    result = cluster.run(lambda ctx: ctx.rank, watch=lambda *change: seen.append(change))
    assert [state for state, _ in seen] == ["waiting", "starting", "running", "done"]
    begins = {state: begin for state, begin, _ in result.timeline}
    assert {state: since for state, since in seen if state in begins} == begins

    def train(ctx):
        while not ctx.stop(0):
            pass

    def refuse(state, since_s):
        if state == "suspended":
            raise KeyError(state)
        if state == "running":
            cluster.resize(0)

    try:
        with pytest.raises(KeyError, match="suspended"):
            cluster.run(train, watch=refuse)
    finally:
        cluster.resize(None)
    assert cluster.run(lambda ctx: ctx.generation).values == (0, 0, 0)


@pytest.mark.capability("a trace of all hosts")
def test_all_hosts_are_traced_side_by_side_and_their_values_stay(cluster, tmp_path):
    def train(ctx, folder):
        import contextlib

        import jax.numpy as jnp

        total = jnp.zeros(())
        for step in range(4):
            traced = ctx.trace(folder) if folder and step in (1, 3) else contextlib.nullcontext()
            with traced:
                total = (total + step * jnp.ones(64)).sum().block_until_ready()
        return float(total)

    assert cluster.run(train, str(tmp_path)).values == cluster.run(train, None).values
    for run in ("generation0-1", "generation0-2"):
        files = {file.name for file in (tmp_path / "plugins" / "profile" / run).iterdir()}
        assert {f"process{rank}.xplane.pb" for rank in range(3)} <= files
        assert not [name for name in files if name.startswith(".")]


@pytest.mark.capability("an exception that names the rank")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_exception_names_its_rank_and_has_its_cause(cluster, rank):
    def train(ctx):
        if ctx.rank == rank:
            raise ZeroDivisionError(f"on {ctx.rank}")
        while not ctx.stop(0):
            pass

    with pytest.raises(RankError, match=f"rank {rank}") as caught:
        cluster.run(train, elastic=Elastic(budget={"exception": 0}))
    assert caught.value.rank == rank
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "ZeroDivisionError: on" in str(caught.value)


@pytest.mark.capability("a function on each host")
def test_map_calls_a_function_on_each_host(cluster):
    def environment(name):
        import os

        return os.environ[name], os.getpid()

    values = cluster.map(environment, "JAX_PLATFORMS")
    assert [value for value, _ in values] == ["cpu"] * 3
    assert len({pid for _, pid in values}) == 3


def test_map_names_the_host_that_fails(cluster):
    def fail():
        raise OSError("disk")

    with pytest.raises(RankError, match=r"failed on local host 0:(.|\n)*OSError: disk") as caught:
        cluster.map(fail)
    assert caught.value.rank == 0
    assert isinstance(caught.value.__cause__, OSError)


def test_ctrl_c_kills_the_ranks_and_the_cluster_goes_on(cluster, job, marked):
    def interrupt():
        job.wait(step=2)
        signal.raise_signal(signal.SIGINT)

    # SIGINT is handled by the main thread, which runs the job.
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        cluster.run(job.function())
    thread.join(120)
    steps = len(job.log())
    assert cluster.run(lambda ctx: ctx.rank).values == (0, 1, 2)
    assert len(job.log()) == steps


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a stranger is refused while the job goes on")
def test_a_stranger_is_refused_while_the_job_goes_on(cluster, job, caplog):
    job.start(cluster)
    job.wait(step=2)
    with (
        caplog.at_level(logging.WARNING, "dovetail_cluster"),
        socket.create_connection(split(cluster._fleet.address)) as stranger,
    ):
        stranger.sendall(bytes(64))
        while stranger.recv(4096):
            pass
    job.wait(step=job.log()[-1][3] + 3)
    assert job.end().generations == 1
    assert any("refused 127.0.0.1:" in record.message for record in caplog.records)


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("resizing and suspending a run")
def test_a_resize_changes_the_hosts_and_zero_suspends(cluster, job):
    job.start(cluster, hosts=(2, 3))
    job.wait(step=2, hosts=3)
    cluster.resize(2)
    generation = job.wait(generation=1, step=3, hosts=2)
    cluster.resize(0)
    end = time.monotonic() + 120
    while cluster.state != "suspended" and time.monotonic() < end:
        time.sleep(0.02)
    steps = len(job.log())
    cluster.resize(None)
    job.wait(generation=generation + 1, step=4, hosts=3)
    assert {line[0] for line in job.log()[:steps]} == {0, generation}
    result = job.end()
    assert result.states["suspended"] > 0
    assert cluster.state == "idle"


def test_one_run_at_a_time(cluster, job):
    job.start(cluster)
    job.wait()
    with pytest.raises(RuntimeError, match=r"one function at a time, got a second call; wait"):
        cluster.run(job.function())
    with pytest.raises(RuntimeError, match=r"one function at a time, got a second call; wait"):
        cluster.map(print)
    job.end()


def test_a_host_that_the_probe_refuses_is_left_out(cluster):
    def refuse():
        raise RuntimeError("this device is warm")

    with pytest.raises(HostsError, match="this device is warm"):
        cluster.run(lambda ctx: 0, elastic=Elastic(probe=refuse, wait_s=2.0))


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a notice of the user's own")
def test_the_users_notice_takes_the_host_away(cluster, job):
    file = str(job.folder / "notice")

    def noticed():
        import os

        try:  # the first host that asks
            os.rename(file, file + ".taken")
        except FileNotFoundError:
            return False
        return True

    job.start(cluster, hosts=(2, 3), notice=noticed)
    job.wait(step=2, hosts=3)
    open(file, "w").close()
    job.wait(generation=1, step=3, hosts=2)
    assert job.end().generations == 2
    for place in range(3):
        cluster.host(place).restore()


def test_output_has_the_ranks_name(cluster, capfd):
    cluster.run(lambda ctx: __import__("sys").stdout.write(f"hello from {ctx.rank}\n"))
    lines = capfd.readouterr().err.splitlines()
    for rank in range(3):
        assert f"[rank {rank}] hello from {rank}" in lines


@pytest.mark.capability("a stopped rank, named with all stacks")
def test_a_stopped_rank_is_named_in_the_report(cluster, job, caplog):
    job.start(cluster, stall_s=5.0, hosts=(3,))
    for rank in range(3):  # any of them may be on host 1
        job.wait(step=2, rank=rank)
    with caplog.at_level(logging.WARNING, "dovetail_cluster"):
        cluster.host(1).stop()
        job.wait(generation=1, step=4)
    result = job.end()
    # A warning that a rank is behind may come before, where the machine is slow.
    report = next(r.message for r in caplog.records if r.message.startswith("The job is stuck"))
    assert re.match(r"The job is stuck: rank \d on local host 1 ", report)
    assert "in train" in report  # the others wait in the collective of the function
    assert result.states["stuck"] >= 5.0


@pytest.mark.costly("it starts the hosts of its file")
def test_options_say_what_is_right(cluster):
    with pytest.raises(ValueError, match=r"at most 3, got hosts=\(4, 5\); write"):
        cluster.run(print, elastic=Elastic(hosts=(4, 5)))
    with pytest.raises(ValueError, match=r"from 0 to 3, got hosts=4; write resize\(3\)"):
        cluster.resize(4)
    with pytest.raises(ValueError, match=r"from 0 to 2, got 3; write host\(0\)"):
        cluster.host(3)
    with pytest.raises(ValueError, match=r"preload must be a sequence .* got 'optax'; write"):
        Cluster.local(hosts=1, preload="optax")


@pytest.mark.thorough
def test_a_failing_preload_fails_the_run():
    with (
        Cluster.local(hosts=1, preload=("no_such_module",)) as cluster,
        pytest.raises(JobError, match=r"preloaded module no_such_module (.|\n)*Install"),
    ):
        cluster.run(print)


@pytest.mark.thorough
def test_a_closed_cluster_runs_nothing():
    cluster = Cluster.local(hosts=1)
    cluster.close()
    cluster.close()
    with pytest.raises(RuntimeError, match=r"must be open to run, got a closed one; make another"):
        cluster.run(print)
