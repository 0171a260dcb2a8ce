# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Local places: what they start, and that nothing is left of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail_cluster import Cluster
from dovetail_cluster.backends.base import Backend, Placed
from dovetail_cluster.backends.local import Local


def test_it_is_a_backend():
    local = Local(3)
    assert isinstance(local, Backend)
    assert (local.count, local.listen) == (3, "127.0.0.1")


def test_a_place_runs_the_line_with_the_variables_and_its_devices(tmp_path):
    file = tmp_path / "seen"
    program = f"import os, sys; open({str(file)!r}, 'w').write(os.environ['X'] + str(sys.argv[1:]))"
    placed = Local(2, devices_per_host=4).place(["-c", program], {"X": "1"}, place=1)
    assert isinstance(placed, Placed)
    assert placed.name == "local host 1"
    while placed.poll() is None:
        time.sleep(0.01)
    assert file.read_text() == "1['--devices', '4']"
    placed.kill()
    placed.kill()  # it is gone


def test_one_host_may_have_the_devices_that_jax_finds(tmp_path):
    file = tmp_path / "seen"
    program = f"import sys; open({str(file)!r}, 'w').write(str(sys.argv[1:]))"
    placed = Local(1, devices_per_host=None).place(["-c", program], {}, place=0)
    while placed.poll() is None:
        time.sleep(0.01)
    placed.kill()
    assert file.read_text() == "[]"
    with pytest.raises(ValueError, match=r"must not share its accelerators, got hosts=2 .*hosts=1"):
        Local(2, devices_per_host=None)


def test_a_kill_waits_for_what_the_daemon_has_started(tmp_path):
    """The child outlives its parent by half a second here; its output pipe is still open."""
    file = tmp_path / "end"
    child = f"import time; time.sleep(0.5); open({str(file)!r}, 'w')"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    placed = Local(1).place(["-c", program], {}, place=0)
    children = Path(f"/proc/{placed.pid}/task/{placed.pid}/children")
    while not children.read_text():
        time.sleep(0.01)
    placed.kill()
    assert file.exists()
    assert placed.poll() is not None


@pytest.mark.parametrize(("hosts", "devices"), [(0, 1), (1, 0)])
def test_numbers_are_at_least_1(hosts, devices):
    with pytest.raises(ValueError, match=r"must be at least 1, got .*=0; write"):
        Local(hosts, devices_per_host=devices)


def test_a_killed_driver_leaves_no_process(marked, tmp_path):
    program = f"""
from dovetail_cluster import Cluster
def train(ctx):
    open({str(tmp_path / "runs")!r}, "w").close()
    while not ctx.stop(0):
        pass
with Cluster.local(hosts=1) as cluster:
    cluster.run(train)
"""
    driver = subprocess.Popen([sys.executable, "-c", program])
    end = time.monotonic() + 120
    while not (tmp_path / "runs").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert len(marked()) == 4  # the driver, a daemon, its server, a rank
    driver.kill()
    driver.wait()
    while marked() and time.monotonic() < end:
        time.sleep(0.02)
    assert marked() == []


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a closed cluster leaves no process")
def test_a_closed_cluster_leaves_no_process(marked, tmp_path):
    """Not even one that a rank has started, whether the rank has ended or is running."""

    def train(ctx, folder):
        import jax

        subprocess.Popen(["sleep", "600"])
        open(f"{folder}/{ctx.rank}", "w").close()
        return jax.local_device_count()

    with Cluster.local(hosts=2, devices_per_host=2) as cluster:
        assert cluster.run(train, str(tmp_path)).values == (2, 2)
        assert len(os.listdir(tmp_path)) == 2
        assert len(marked()) == 4  # two daemons and their servers
    assert marked() == []
