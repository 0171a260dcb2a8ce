# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs under any sequence of faults, on simulated hosts, whose rules `simulated` asserts.

Hypothesis draws the faults and the seed of all delays. After the faults the job must end.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from simulated import Simulation

from dovetail_cluster import Elastic, events

ENDLESS = {"crash": 10**6, "stall": 10**6, "exception": 10**6}


class Faults(RuleBasedStateMachine):
    """Draws faults while a job runs."""

    @initialize(
        hosts=st.sampled_from((None, (1, 3), (2, 3), (1, 2, 3, 4))),
        budget=st.sampled_from((ENDLESS, ENDLESS, {})),
        steps=st.integers(1, 30),
        step_s=st.sampled_from((0.02, 0.3, 1.0)),
        asks=st.sampled_from((True, True, True, False)),
        reports=st.sampled_from((True, True, True, False)),
        seed=st.integers(0, 10**6),
    )
    def begin(self, hosts, budget, steps, step_s, asks, reports, seed):
        self.elastic = Elastic(
            hosts=hosts, budget=budget, stall_s=5.0, first_step_s=10.0, drain_s=8.0, wait_s=30.0
        )
        self.job = Simulation(
            self.elastic, expected=3, steps=steps, seed=seed, asks=asks, reports=reports
        )
        self.job.step_s = step_s
        self.endless = budget is ENDLESS

    def host(self, i):
        return sorted(self.job.hosts)[i % len(self.job.hosts)]

    def rank(self, i):
        ranks = self.job.running()
        return ranks[i % len(ranks)]

    runs = precondition(lambda self: not self.job.over)
    has_hosts = precondition(lambda self: not self.job.over and self.job.hosts)
    has_ranks = precondition(lambda self: not self.job.over and self.job.running())
    which = st.integers(0, 5)

    @rule(seconds=st.sampled_from((0.05, 0.3, 1.0, 3.0, 12.0)))
    def wait(self, seconds):
        self.job.run(0.0 if self.job.over else seconds)

    @has_ranks
    @rule(i=which, code=st.sampled_from((-9, -9, -11, 0, 1)))
    def crash(self, i, code):
        self.job.crash(*self.rank(i), code)

    @has_ranks
    @rule(i=which)
    def hang(self, i):
        self.rank(i)[1].hung = True

    @has_ranks
    @rule(i=which)
    def pause(self, i):
        self.rank(i)[1].paused = True

    @has_ranks
    @rule(i=which)
    def throw(self, i):
        daemon, process = self.rank(i)
        if not process.paused:
            self.job.throw(daemon, process, f"at {self.job.now}")

    @has_hosts
    @rule(i=which)
    def remove(self, i):
        self.job.remove(self.host(i))

    @has_hosts
    @rule(i=which)
    def notice(self, i):
        self.job.notice(self.host(i))

    @has_hosts
    @rule(i=which, well=st.booleans())
    def change_health(self, i, well):
        self.job.hosts[self.host(i)].sick = None if well else "a device does not answer"

    @has_hosts
    @rule(i=which)
    def ignore_probes(self, i):
        self.job.hosts[self.host(i)].answers_probes = False

    @runs
    @rule()
    def join(self):
        if len(self.job.hosts) < 5:
            self.job.join()

    @runs
    @rule(hosts=st.sampled_from((0, 1, 2, 3, None, None)))
    def resize(self, hosts):
        self.job.resize(hosts)

    @runs
    @rule()
    def take_port(self):
        self.job.ports_taken += 1

    def teardown(self):
        if not hasattr(self, "job"):
            return
        ended_before = self.job.over
        if not self.job.over:
            self.job.resize(None)
        if not self.job.over:
            for _ in range(3):
                self.job.join()
        last = self.job.finish() if not self.job.over else self.job.actions[-1]
        assert isinstance(last, events.Finish) or ended_before or not self.endless, last
        self.job.check_replay()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.capability("faults in any order")
class TestFaults(Faults.TestCase):
    settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.thorough
class TestManyFaults(Faults.TestCase):
    settings = settings(TestFaults.settings, max_examples=200)
