# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces of their own, with links that a test takes down.

A bridge joins the namespaces and the controller. Unlike `Host.cut`, a link that is down also parts
the ranks: nothing ends their connections, and packets are lost without a word.
"""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from dovetail_cluster import Cluster
from dovetail_cluster.backends.base import Backend
from dovetail_cluster.backends.local import LocalPlaced
from dovetail_cluster.wire import BEAT_S

LIMIT_S = 120.0


class Namespaces:
    """Places daemons in network namespaces. Needs root and the program ip.

    Args:
        count: Number of hosts, each with a namespace.
    """

    def __init__(self, count):
        self.count = count
        self._id = f"dt{os.getpid()}"
        part, number = divmod(os.getpid() % 512, 256)
        self._subnet = f"198.{18 + part}.{number}"  # for tests of networks, by RFC 2544
        self.listen = f"{self._subnet}.1"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def place(self, line, environment, *, place):
        program = [sys.executable, "-P", *line, "--devices", "1"]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._space(place), *program],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return LocalPlaced(process, f"namespace {place}")

    def close(self):
        """Removes the namespaces and the bridge, as far as they exist."""
        for place in range(self.count):
            subprocess.run(["ip", "link", "del", self._end(place)], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", self._space(place)], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", self._id], stderr=subprocess.DEVNULL)

    def address(self, place):
        return f"{self._subnet}.{place + 2}"

    @contextlib.contextmanager
    def down(self, place):
        """Takes the link of a host down, and up again."""
        ip("link", "set", self._end(place), "down")
        try:
            yield
        finally:
            ip("link", "set", self._end(place), "up")

    @contextlib.contextmanager
    def parted(self, *places):
        """Loses all packets between the hosts. All still reach the others and the controller."""
        try:
            for place in places:
                self._isolate(place, "on")
            yield
        finally:
            for place in places:
                self._isolate(place, "off")

    def _isolate(self, place, state):
        ip("link", "set", self._end(place), "type", "bridge_slave", "isolated", state)

    def _space(self, place):
        return f"{self._id}-{place}"

    def _end(self, place):
        return f"{self._id}v{place}"

    def _inside(self, place, *command):
        ip("-n", self._space(place), *command)

    def _make(self):
        ip("link", "add", self._id, "type", "bridge")
        ip("address", "add", f"{self.listen}/24", "dev", self._id)
        ip("link", "set", self._id, "up")
        for place in range(self.count):
            space, end = self._space(place), self._end(place)
            ip("netns", "add", space)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", end, "master", self._id, "up")
            self._inside(place, "address", "add", f"{self.address(place)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._inside(place, "link", "set", device, "up")


def ip(*command):
    subprocess.run(["ip", *command], check=True, capture_output=True, text=True)


def why_not():
    """Returns what namespaces lack on this machine, "" for nothing."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the program ip"
    name = f"dt{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made.stderr.strip()


@pytest.fixture(scope="module")
def spaces(module_marked):
    if reason := why_not():
        pytest.skip(reason)
    with contextlib.closing(Namespaces(3)) as three:
        yield three


@pytest.fixture(scope="module")
def cluster(spaces, module_marked):
    with Cluster(spaces) as three:
        yield three
    assert module_marked() == []


def test_namespaces_are_a_backend(spaces):
    assert isinstance(spaces, Backend)


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a link that goes down between hosts")
def test_a_host_behind_a_dead_link_is_left_out_and_comes_back(cluster, spaces, job):
    job.start(cluster, hosts=(2, 3), stall_s=60.0)
    job.wait(step=2, hosts=3)
    with spaces.down(1):
        generation = job.wait(generation=1, step=3, hosts=2)
    job.wait(generation=generation + 1, step=3, hosts=3)
    result = job.end()
    assert (len(result.values), result.generations) == (3, generation + 2)


@pytest.mark.slow
def test_a_job_of_all_hosts_waits_for_a_dead_link(cluster, spaces, job):
    job.start(cluster, hosts=(3,), stall_s=60.0)
    job.wait(step=2)
    with spaces.down(1):
        until(lambda: cluster.state == "waiting")
    job.wait(generation=1, step=3)
    result = job.end()
    assert result.generations == 2
    assert result.states["waiting"] > 0


@pytest.mark.thorough
def test_a_link_that_comes_back_in_time_costs_nothing(cluster, spaces, job):
    job.start(cluster, hosts=(3,), stall_s=60.0)
    job.wait(step=2)
    link = cluster._fleet.member(1).link
    with spaces.down(1):
        until(lambda: time.monotonic() - link.heard > 2 * BEAT_S)
        step = job.log()[-1][3]
    job.wait(step=step + 3)
    assert job.end().generations == 1


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("packets lost between two hosts, named in time")
def test_packets_lost_between_two_hosts_are_a_stall_named_in_time(cluster, spaces, job, caplog):
    job.start(cluster, hosts=(3,), stall_s=3.0)
    job.wait(step=2)
    with (
        caplog.at_level(logging.WARNING, "dovetail_cluster"),
        spaces.parted(*last_ranks(cluster)),
    ):
        report = until(lambda: logged(caplog, "The job is stuck"))
    # 5.0 on an idle machine. Without the deadline it would be a minute, until gloo fails.
    assert 3.0 <= seconds(report) <= 30.0
    for rank in range(3):
        assert f"rank {rank} on " in report
    assert report.count("in train") == 3  # all wait in the collective
    assert "(no stack)" not in report
    job.wait(generation=1, step=4)
    assert job.end().generations == 2


@pytest.mark.slow
def test_ranks_that_cannot_reach_each_other_are_started_again(cluster, spaces, job, caplog):
    assert len(cluster.run(lambda ctx: ctx.rank).values) == 3  # so that all have joined
    with caplog.at_level(logging.WARNING, "dovetail_cluster"), spaces.parted(*last_ranks(cluster)):
        job.start(cluster, hosts=(3,), budget={"exception": 0})  # it takes gloo a minute to fail
        failed = until(lambda: logged(caplog, "generation 0 failed"))
    assert "Gloo" in failed
    assert failed.endswith("4 restarts are left for crash")
    job.wait(generation=1, step=2)
    assert job.end().generations == 2


def last_ranks(cluster):
    """Places of ranks 1 and 2. Rank 0 is the coordinator, whose connections are no collectives."""
    members = sorted(cluster._fleet.ready().values(), key=lambda member: member.number)
    return [member.place for member in members[1:]]


def logged(caplog, text):
    return next((r.message for r in caplog.records if text in r.message), None)


def seconds(report):
    match = re.search(r"completed no step for ([0-9.]+) s", report)
    assert match is not None, report
    return float(match[1])


def until(true):
    """Waits until a function returns something true, and returns it."""
    end = time.monotonic() + LIMIT_S
    while not (value := true()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)
    return value
