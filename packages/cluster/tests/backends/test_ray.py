# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Ray: a real cluster of a head without CPUs and two workers, all on this machine."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import ray as ray_package
from ray.cluster_utils import Cluster as Nodes

from dovetail_cluster import Cluster, manifest
from dovetail_cluster.backends import base
from dovetail_cluster.backends import ray as backend_module
from dovetail_cluster.backends.ray import Ray

STORE = {"object_store_memory": 80 * 2**20}

# Ray forks to start a node, and JAX, which other tests have imported, warns of forks.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(scope="module")
def nodes():
    """The cluster. Its nodes have a variable that Ray overwrites, and one that it does not."""
    before = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "DOVETAIL_TEST_NODE": "yes",
        "JAX_PLATFORMS": "cpu",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in before.items():
            patch.setenv(name, value)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        cluster = Nodes(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, **STORE},
        )
        for _ in range(2):
            cluster.add_node(num_cpus=1, num_gpus=2, **STORE)
    ray_package.init(cluster.address, log_to_driver=False, logging_level="warning")
    yield cluster
    ray_package.shutdown()
    cluster.shutdown()


@pytest.fixture
def backend(nodes):
    backend = Ray()
    yield backend
    backend.close()


def program(path, body):
    """A line that runs `body`, which may write to the named pipe at `path`."""
    os.mkfifo(path)
    return [
        "-c",
        f"import json, os, sys, time\nout = open({str(path)!r}, 'w')\n{textwrap.dedent(body)}",
    ]


def forever(path):
    return program(
        path, "print(os.getpid(), file=out, flush=True)\nsys.stdin.read()\ntime.sleep(600)"
    )


def end(placed):
    """Exit code of a daemon that is about to end."""
    assert ray_package.wait([placed._end], timeout=120)[0]
    return placed.poll()


@pytest.mark.capability("daemons are placed on Ray nodes")
def test_one_daemon_on_each_node_that_has_cpus(backend, tmp_path):
    assert isinstance(backend, base.Backend)
    assert (backend.count, backend.listen) == (2, "127.0.0.1")
    report = (
        "json.dump([dict(os.environ), os.getcwd(), os.getppid()], out)\nout.close()\nsys.exit(5)"
    )
    key = {"DOVETAIL_CLUSTER_KEY": "12" * 32}
    placed, parents = [], set()
    for place in range(2):
        path = tmp_path / f"pipe{place}"
        placed.append(backend.place(program(path, report), key, place=place))
        assert isinstance(placed[-1], base.Placed)
        environment, directory, parent = json.loads(path.read_text())
        parents.add(parent)
        assert directory == os.getcwd()
        assert environment["DOVETAIL_CLUSTER_KEY"] == "12" * 32
    assert [end(daemon) for daemon in placed] == [5, 5]
    assert len({daemon.name for daemon in placed}) == 2
    assert len(parents) == 2
    for daemon in placed:
        daemon.kill()  # ends the actors
    assert [daemon.poll() for daemon in placed] == [5, 5]


@pytest.mark.capability("a daemon on Ray sees the devices of its node")
@pytest.mark.parametrize("resources", [None, {"GPU": 1}])
def test_the_environment_is_the_nodes_not_the_workers(nodes, tmp_path, resources):
    backend = Ray(resources=resources)
    path = tmp_path / "pipe"
    placed = backend.place(program(path, "json.dump(dict(os.environ), out)"), {}, place=0)
    environment = json.loads(path.read_text())
    assert end(placed) == 0
    placed.kill()
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment["DOVETAIL_TEST_NODE"] == "yes"
    assert not [name for name in environment if name.startswith("RAY_")]
    assert not {"OMP_NUM_THREADS", "PYTHONBREAKPOINT"} & set(environment)


def test_kill_ends_the_daemon(backend, tmp_path):
    placed = backend.place(forever(tmp_path / "pipe"), {}, place=1)
    with open(tmp_path / "pipe") as lines:
        pid = int(lines.readline())
        assert placed.poll() is None
        placed.kill()
        assert lines.read() == ""
    assert placed.poll() == -9
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    placed.kill()  # does nothing now


def test_with_hosts_each_is_on_a_node_of_its_own(nodes, tmp_path):
    backend = Ray(hosts=2)
    assert backend.count == 2
    report = "print(os.getpid(), file=out, flush=True)\ntime.sleep(600)"
    placed = [
        backend.place(program(tmp_path / f"pipe{place}", report), {}, place=place)
        for place in range(2)
    ]
    for place in range(2):
        with open(tmp_path / f"pipe{place}") as lines:
            lines.readline()
    table = ray_package.util.placement_group_table(backend._group)
    assert len(set(table["bundles_to_node_id"].values())) == 2
    assert table["strategy"] == "STRICT_SPREAD"
    for daemon in placed:
        daemon.kill()
    backend.close()


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a killed Ray node is reported")
def test_a_node_that_dies_takes_its_daemon_and_is_polled(nodes, tmp_path):
    extra = nodes.add_node(num_cpus=1, resources={"spot": 1}, **STORE)
    nodes.wait_for_nodes()
    backend = Ray(resources={"spot": 1})
    assert backend.count == 1
    placed = backend.place(forever(tmp_path / "pipe"), {}, place=0)
    with open(tmp_path / "pipe") as lines:
        lines.readline()
        nodes.remove_node(extra, allow_graceful=False)
        assert lines.read() == ""  # the daemon has died with its node
    assert end(placed) == -1
    placed.kill()  # does nothing now


def training():
    """A function that is pickled by its value: ranks cannot import this file."""

    def train(ctx):
        """Sums over all ranks, with an order of additions that a difference would show."""
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        assert "RAY_JOB_ID" not in os.environ
        total = jnp.zeros(())
        for step in range(5):
            own = jax.random.normal(jax.random.key(step + 10 * ctx.rank), (7,))
            total += multihost_utils.process_allgather(own).sum()
            ctx.progress.write(step, {})
        return float(total), jax.process_count(), jax.process_index()

    return train


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("one result on Ray and on local hosts")
@pytest.mark.capability("a job survives a killed Ray node")
def test_a_job_on_ray(nodes, job):
    added = [nodes.add_node(num_cpus=1, resources={"train": 1}, **STORE) for _ in range(2)]
    nodes.wait_for_nodes()
    with Cluster(Ray(resources={"train": 1}), logs="none") as cluster:
        on_ray = cluster.run(training()).values
        with Cluster.local(hosts=2, logs="none") as local:
            assert local.run(training()).values == on_ray
        names = {place.placed.name for place in cluster._fleet._places}
        job.start(cluster)
        job.wait(step=2)
        added.append(nodes.add_node(num_cpus=1, resources={"train": 1}, **STORE))
        nodes.remove_node(added[0], allow_graceful=False)
        job.wait(generation=1, step=4)
        assert job.end().generations == 2
        # One place has moved to the new node.
        assert len(names - {place.placed.name for place in cluster._fleet._places}) == 1
    assert on_ray[0][1] == 2


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a RayJob's command runs on each host")
def test_the_manifest_runs_on_the_cluster(nodes, tmp_path):
    body = """
        from dovetail_cluster import Cluster
        with Cluster.ray(hosts=2, logs="none") as cluster:
            print(cluster.map(lambda: "here"))
    """
    command = [sys.executable, "-c", textwrap.dedent(body)]
    job = json.loads(manifest("rayjob", image="train:1", command=command, hosts=2))
    # KubeRay runs the entrypoint by a shell on the head, where Ray's address is set.
    done = subprocess.run(
        ["bash", "-c", job["spec"]["entrypoint"]],
        env={**os.environ, "RAY_ADDRESS": nodes.address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "['here', 'here']\n"), done.stderr


def test_no_node_with_the_resources(nodes):
    with pytest.raises(RuntimeError, match=r"must have resources=\{'TPU': 4\}, got \[.*add a node"):
        Ray(resources={"TPU": 4})


@pytest.mark.thorough("processes of several hosts")
def test_hosts_below_one():
    with pytest.raises(ValueError, match=r"at least 1, got 0; write Ray\(hosts=2\)"):
        Ray(hosts=0)


@pytest.mark.thorough
def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "dovetail-cluster\[ray\]"'):
        Ray()


@pytest.mark.thorough
def test_without_a_cluster_the_error_says_how_to_start_one(monkeypatch):
    class Away:
        def init(self, **_):
            raise ConnectionError("nobody")

    with pytest.raises(ConnectionError, match=r"got none at address='h:1' .*ray start --head"):
        backend_module._connect(Away(), "h:1")
