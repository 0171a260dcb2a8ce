# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train --ray`: a Ray cluster of this machine, some nodes of which are killed."""

import json
import os
import signal

import pytest
from ray.cluster_utils import Cluster as Nodes

from dovetail_runs import Run
from dovetail_stack import cli
from train_command import Command, children, environment, line, losses, marked, started

STORE = {"object_store_memory": 80 * 2**20}
MARK = "DOVETAIL_TEST_RAY"

# Ray forks to start a node, and JAX, which other tests have imported, warns of forks.
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")]


@pytest.fixture
def nodes(tmp_path):
    """A head without CPUs. Its nodes have the environment of the command, and a mark."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment(), MARK: str(tmp_path)}.items():
            patch.setenv(name, value)
        head = {"num_cpus": 0, "include_dashboard": False, **STORE}
        cluster = Nodes(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()


def _raylet(node):
    return node.all_processes["raylet"][0].process.pid


def _lose(node):
    """Kills all processes of a node. The workers of a raylet that dies alone may go on."""
    tree = [_raylet(node)]
    for pid in tree:
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing meanwhile
        tree += children(pid)
    for pid in tree:
        os.kill(pid, signal.SIGKILL)


def _has_daemon(node):
    workers = children(_raylet(node))
    return any("--place" in words for pid in workers for words in children(pid).values())


def _of_ours(tmp_path):
    processes = marked(f"{MARK}={tmp_path}").values()
    return [words for words in processes if any("dovetail" in word for word in words)]


@pytest.mark.thorough("it kills processes of several hosts")
@pytest.mark.capability("training on Ray goes on after a node is killed")
def test_a_lost_node_of_ray_is_left_out_and_the_run_is_finished_once(nodes, tmp_path, capsys):
    steps, run = 100, tmp_path / "run"
    workers = [nodes.add_node(num_cpus=1, **STORE) for _ in range(2)]
    options = ("--ray", nodes.address, "--fewest-hosts", 1, "--json")
    command = Command(run, *line(steps, 5, *options))
    command.wait_for(7)
    _lose(workers[1])
    code, output, errors = command.ended()
    assert code == 0, errors
    assert _of_ours(tmp_path) == []
    assert json.loads(output) == {"run": str(run), "finished": True, "export": str(run / "hf")}
    assert started(run) == [(0, 2), (1, 1)], errors
    assert Run(run).metrics.curve("loss").steps.tolist() == [*range(steps)]
    assert (run / "hf" / "model.safetensors").is_file()
    assert cli.main(["runs", "show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "generation 0 failed: rank" in shown
    assert "█ running" in shown


@pytest.mark.slow
@pytest.mark.capability("a killed node of Ray is replaced by another")
def test_a_lost_node_of_ray_is_replaced_and_the_losses_are_those_of_an_unbroken_run(
    nodes, tmp_path
):
    steps, whole, run = 100, tmp_path / "whole", tmp_path / "run"
    workers = [nodes.add_node(num_cpus=1, **STORE) for _ in range(3)]
    options = ("--ray", nodes.address, "--hosts", 2)
    code, _, errors = Command(whole, *line(steps, 5, *options)).ended()
    assert code == 0, errors
    assert started(whole) == [(0, 2)]

    command = Command(run, *line(steps, 5, *options))
    command.wait_for(7)
    _lose(next(node for node in workers if _has_daemon(node)))
    code, _, errors = command.ended()
    assert code == 0, errors
    assert _of_ours(tmp_path) == []
    assert started(run) == [(0, 2), (1, 2)], errors
    assert losses(run) == losses(whole)  # bit for bit
