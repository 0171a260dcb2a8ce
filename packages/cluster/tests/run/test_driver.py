# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs on real processes: restarts after each kind of death, with the result unchanged."""

import pytest

pytestmark = pytest.mark.thorough


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("restart after a rank's death")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank_restarts_all(cluster, job, rank):
    job.start(cluster)
    job.wait(step=2)
    cluster.host(rank).kill()
    job.wait(generation=1, step=4)
    result = job.end()
    assert result.generations == 2
    assert result.states["restarting"] > 0


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("restart after a host's death")
def test_a_killed_daemon_is_replaced_and_the_job_goes_on(cluster, job):
    job.start(cluster)
    job.wait(step=2)
    cluster.host(1).kill_daemon()
    job.wait(generation=1, step=4, hosts=3)
    assert job.end().generations == 2
