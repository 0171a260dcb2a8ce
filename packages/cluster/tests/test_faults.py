# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each fault on real processes: the job names it, survives it, and its result is unchanged.

A stopped rank is in test_cluster.py, whose hosts run already in the fast tier.
"""

import time

import pytest

from dovetail_cluster import StallError


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a rank that sleeps")
def test_a_sleeping_rank_fails_a_job_without_budget(cluster, job):
    job.start(cluster, stall_s=5.0, hosts=(3,), budget={"stall": 0})
    job.wait(step=2, rank=2)
    cluster.host(2).stall(100.0)
    error = job.end()
    assert isinstance(error, StallError)
    assert "on local host 2" in str(error)
    assert "in _sleep" in str(error)


@pytest.mark.thorough("processes of several hosts")
def test_a_stopped_rank_that_resumes_in_time_fails_nothing(cluster, job):
    job.start(cluster)
    job.wait(step=2, rank=1)
    cluster.host(1).stop()
    cluster.host(1).resume()
    step = job.log()[-1][3]
    job.wait(step=step + 3, rank=1)
    assert job.end().generations == 1


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("fewer hosts, then more")
def test_a_removed_host_leaves_two_and_its_return_makes_three(cluster, job):
    job.start(cluster, hosts=(2, 3))
    job.wait(step=2, hosts=3)
    cluster.host(2).remove()
    job.wait(generation=1, step=3, hosts=2)
    cluster.host(2).restore()
    generation = job.wait(generation=2, step=3, hosts=3)
    result = job.end()
    assert result.generations == generation + 1
    assert len(result.values) == 3
    # The return of the host is a planned stop: the next generation goes on after the last step.
    log = [line for line in job.log() if line[1] == 0]
    last = max(step for g, _, _, step in log if g == generation - 1)
    assert min(step for g, _, _, step in log if g == generation) == last + 1


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a notice, with no step lost")
def test_a_notice_stops_all_ranks_at_one_step(cluster, job):
    job.start(cluster, hosts=(2, 3))
    job.wait(step=2, hosts=3)
    cluster.host(0).notice()
    job.wait(generation=1, step=3, hosts=2)
    result = job.end()
    assert result.generations == 2
    log = job.log()
    last = {max(step for g, r, _, step in log if (g, r) == (0, rank)) for rank in range(3)}
    assert len(last) == 1
    assert min(step for g, _, _, step in log if g == 1) == max(last) + 1
    assert result.states["draining"] > 0
    cluster.host(0).restore()


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a network that drops everything")
def test_a_cut_host_is_lost_and_its_rank_is_gone(cluster, job):
    job.start(cluster, hosts=(2, 3), stall_s=60.0)
    job.wait(step=2, hosts=3)
    cut = cluster.host(1)
    cut.cut()
    job.wait(generation=1, step=3)
    cut.mend()
    assert job.end().generations >= 2


@pytest.mark.thorough
def test_a_cut_that_is_mended_in_time_loses_no_host(cluster, job):
    job.start(cluster)
    job.wait(step=2)
    cluster.host(1).cut()
    job.wait(step=job.log()[-1][3] + 5)
    cluster.host(1).mend()
    member = cluster._fleet.member(1)
    cut_at = member.link.heard
    end = time.monotonic() + 120
    while member.link.heard == cut_at and time.monotonic() < end:
        time.sleep(0.02)
    assert job.end().generations == 1


@pytest.mark.thorough
def test_a_stall_takes_a_time_and_an_absent_host_no_fault(cluster):
    with pytest.raises(ValueError, match=r"seconds must be above 0, got seconds=0\.0; write stall"):
        cluster.host(0).stall(0.0)
    cluster.host(1).remove()
    with pytest.raises(RuntimeError, match=r"host 1 must be connected for that, got none; wait"):
        cluster.host(1).kill()
