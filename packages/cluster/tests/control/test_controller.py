# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Stories of jobs on simulated hosts."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from simulated import Simulation

from dovetail_cluster import Elastic, HostsError, JobError, RankError, StallError, events
from dovetail_cluster.control.controller import EXIT_S, Controller

SHORT = {"stall_s": 5.0, "first_step_s": 10.0, "drain_s": 8.0, "wait_s": 30.0}


def job(hosts=None, *, expected=3, budget=None, seed=0, **options) -> Simulation:
    elastic = Elastic(hosts=hosts, budget=budget or {}, **SHORT)
    return Simulation(elastic, expected=expected, seed=seed, **options)


@contextmanager
def finishing(simulation: Simulation) -> Iterator[Simulation]:
    """Runs a job to its good end after the block, and replays it."""
    yield simulation
    assert isinstance(simulation.finish(), events.Finish)
    simulation.check_replay()


def done(simulation: Simulation, steps: int):
    """Whether the controller knows of so many completed steps, in the last generation."""
    return lambda: any(p.step is not None and p.step >= steps - 1 for _, p in simulation.running())


def kinds(simulation: Simulation, kind: type) -> list:
    return [action for action in simulation.actions if isinstance(action, kind)]


@pytest.mark.capability("states that sum to the wall time")
def test_without_faults():
    with finishing(job()) as s:
        pass
    assert s.starts() == [(0, 1, 2)]
    assert [span[0] for span in s.controller.timeline.spans] == ["waiting", "starting", "running"]
    assert s.controller.state == "done"
    assert math.fsum(s.controller.timeline.seconds().values()) == pytest.approx(s.now, rel=1e-12)


@pytest.mark.capability("one recovery path")
@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_rank(rank, seed):
    with finishing(job(seed=seed)) as s:
        s.run_until(done(s, 6))
        s.crash(*s.running()[rank])
    assert s.starts() == [(0, 1, 2)] * 2
    assert len(kinds(s, events.Probe)) == 6  # each host again
    assert "was killed by signal 9 (SIGKILL); 4 restarts are left for crash" in s.said()


@pytest.mark.capability("fewer hosts, then more")
def test_a_lost_host_then_another():
    with finishing(job((2, 3), steps=60)) as s:
        s.run_until(done(s, 6))
        s.remove(1)
        s.run_until(lambda: len(s.starts()) == 2)
        s.run_until(done(s, 9))
        s.join()
    # The last rank takes the place of the lost one; the new host is the last.
    assert s.starts() == [(0, 1, 2), (0, 2), (0, 2, 3)]
    assert "stops at an agreed step: 3 hosts are healthy" in s.said()
    stopped = [p for p in s.processes if p.start.generation == 1]
    assert len({p.stopped_at for p in stopped} - {None}) == 1


@pytest.mark.capability("warm spares")
def test_a_spare_takes_the_place_of_a_lost_host():
    with finishing(job((2,), expected=3)) as s:
        s.run_until(done(s, 6))
        s.remove(s.starts()[0][0])
    (first, second), (third, fourth) = s.starts()
    assert fourth == second
    assert {first, second, third} == {0, 1, 2}
    assert "waiting" not in [span[0] for span in s.controller.timeline.spans[1:]]


@pytest.mark.capability("an agreed stop at a notice")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step_s", (0.001, 0.02, 0.3))
def test_a_notice(seed, step_s):
    with finishing(job((2, 3), steps=900 if step_s < 0.1 else 30, seed=seed)) as s:
        s.step_s = step_s
        s.run_until(done(s, 6))
        s.notice(1)
    assert s.starts() == [(0, 1, 2), (0, 2)]
    assert [a.host for a in kinds(s, events.Dismiss)] == [1]
    assert len(kinds(s, events.Probe)) == 3  # nothing has failed
    first = [p for p in s.processes if p.start.generation == 0]
    assert len({p.stopped_at for p in first}) == 1
    assert first[0].stopped_at is not None
    # No step is lost: the next generation begins where this one has stopped.
    assert {p.next_step for p in first} == {s.first_steps[1]}


def test_a_notice_of_a_spare_stops_nothing():
    with finishing(job((2,), expected=3)) as s:
        s.run_until(done(s, 3))
        (spare,) = {0, 1, 2} - set(s.starts()[0])
        s.notice(spare)
    assert len(s.starts()) == 1
    assert [a.host for a in kinds(s, events.Dismiss)] == [spare]


@pytest.mark.capability("suspend and resume")
def test_resize():
    with finishing(job((1, 2, 3), steps=60)) as s:
        s.run_until(done(s, 6))
        s.resize(2)
        s.run_until(lambda: len(s.starts()) == 2)
        s.run_until(done(s, 10))
        s.resize(0)
        s.run_until(lambda: s.controller.state == "suspended")
        s.run(1000.0)
        assert s.controller.state == "suspended"
        s.resize(None)
    assert s.starts() == [(0, 1, 2), (0, 1), (0, 1, 2)]
    assert s.controller.timeline.seconds()["suspended"] >= 1000.0


def test_a_resize_that_is_not_allowed_is_said():
    with finishing(job((2, 3))) as s:
        s.resize(1)
    assert s.starts() == [(0, 1, 2)]
    assert "a resize takes 0 or at least the least allowed number of hosts, 2, got 1" in s.said()


def test_a_drain_has_a_limit():
    with finishing(job((2, 3), asks=False, steps=60)) as s:
        s.run_until(done(s, 6))
        s.notice(1)
    assert s.starts()[:2] == [(0, 1, 2), (0, 2)]
    assert "the agreed stop did not end within drain_s=8" in s.said()
    assert "restarts are left" not in s.said()


def test_a_rank_that_dies_during_an_agreed_stop():
    with finishing(job((2, 3), budget={"crash": 1})) as s:
        s.run_until(done(s, 6))
        s.notice(1)
        s.run_until(lambda: kinds(s, events.Propose))
        s.crash(*s.running()[0])
    assert s.starts() == [(0, 1, 2), (0, 2)]
    assert "restarts are left for crash" in s.said()


@pytest.mark.parametrize("seed", range(6))
def test_a_job_that_ends_during_an_agreed_stop_is_done(seed):
    with finishing(job((2, 3), steps=8, seed=seed)) as s:
        s.run_until(done(s, 7))
        s.notice(1)
    assert len(s.starts()) <= 2


@pytest.mark.capability("a stall is noticed")
@pytest.mark.parametrize("how", ("hung", "paused"))
def test_a_stall(how):
    with finishing(job()) as s:
        s.run_until(done(s, 6))
        _, process = s.running()[2]
        setattr(process, how, True)
        begun = s.now
        s.run_until(lambda: "is stuck" in s.said())
        assert s.now - begun <= s.elastic.stall_s + 3.0
    assert s.starts() == [(0, 1, 2)] * 2
    assert len(kinds(s, events.Dump)) == 3
    if how == "paused":
        assert "Suspected: rank 2 on h2: no sign of life" in s.said()
    spans = s.controller.timeline.spans
    (stuck,) = [span for span in spans if span[0] == "stuck"]
    # From the last progress, not from its discovery.
    assert stuck[1] <= begun + 0.5
    assert stuck[2] - stuck[1] >= s.elastic.stall_s


def test_a_function_without_questions_and_progress():
    s = job(asks=False, reports=False, steps=90, budget={"stall": 0})
    last = s.finish()
    assert isinstance(last.error, StallError)
    assert "neither asks stop nor reports progress" in str(last.error)
    assert s.now == pytest.approx(12.0, abs=3.0)


@pytest.mark.capability("errors name the rank")
def test_an_exception_twice():
    s = job(budget={"exception": 9})
    s.raises[7] = "bad batch"
    last = s.finish()
    assert isinstance(last.error, RankError)
    assert last.error.generation == 1
    assert "raised ValueError after step 6 in generation 1, the same exception" in str(last.error)
    assert s.controller.state == "failed"
    assert s.controller.live == []
    s.check_replay()


@pytest.mark.parametrize("seed", range(8))
def test_exceptions_because_of_a_death_do_not_count(seed):
    with finishing(job(budget={"exception": 0}, seed=seed)) as s:
        s.run_until(done(s, 6))
        victim, *others = s.running()
        for daemon, process in others:
            s.throw(daemon, process, "Connection reset by peer")  # heard before the death
        s.at(0.1, lambda: s.end(*victim, -9))
    assert "was killed by signal 9 (SIGKILL); 4 restarts are left for crash" in s.said()


def test_crashes_without_progress_end_the_job():
    s = job(budget={"crash": 2})
    s.step_s = 3.0
    for generation in range(3):
        s.run_until(lambda g=generation: len(s.starts()) > g and s.controller.state == "running")
        s.crash(*s.running()[0])
    assert type(s.finish().error) is JobError
    assert "this was failure 3" in str(s.actions[-1].error)
    assert len(s.starts()) == 3


def test_a_taken_port():
    s = job(budget={"crash": 0})
    s.ports_taken = 3
    with finishing(s):
        pass
    assert len(s.starts()) == 4
    assert s.said().count("port was taken") == 3


def test_a_port_that_is_always_taken():
    s = job(budget={"crash": 0})
    s.ports_taken = 99
    assert "exited with code 98" in str(s.finish().error)
    assert len(s.starts()) == 6


@pytest.mark.capability("sick hosts are left out")
def test_a_sick_host():
    s = job((2, 3))
    s.hosts[1].sick = "device 0 computes 1.5 instead of 2.0"
    with finishing(s):
        pass
    assert s.starts() == [(0, 2)]
    assert "h1 is left out: device 0 computes 1.5 instead of 2.0" in s.said()


def test_too_few_hosts():
    s = job()
    s.hosts[1].answers_probes = False
    last = s.finish()
    assert isinstance(last.error, HostsError)
    assert "its probe did not end within 120 s" in str(last.error)
    assert s.now == pytest.approx(150.0, abs=5.0)


def test_done_is_when_all_have_returned_and_lingering_ranks_are_killed():
    controller = Controller(Elastic(), expected=2)
    for event in (
        events.Joined(0, "a"),
        events.Joined(1, "b"),
        events.Probed(0, None),
        events.Probed(1, None),
        events.Reserved(0, 0, "a:1"),
        events.Returned(0, 0, b"x", False),
    ):
        controller.handle(event, 1.0)
    # The exit code after a result does not matter, nor the end of its host.
    assert controller.handle(events.Exited(0, 0, -6), 1.5) == []
    assert controller.handle(events.Lost(0, "gone"), 1.5) == []
    actions = controller.handle(events.Returned(1, 0, b"y", False), 2.0)
    assert actions == [events.Finish((b"x", b"y"))]
    assert controller.state == "done"
    assert controller.live == [(1, 0)]
    assert controller.handle(events.Joined(9, "late"), 3.0) == []
    assert controller.handle(events.Ticked(), 2.0 + EXIT_S) == [events.Kill(1, 0)]
    assert controller.handle(events.Ticked(), 99.0) == []
    controller.handle(events.Exited(1, 0, -9), 99.0)
    assert controller.live == []
    assert controller.timeline.spans[-1][2] == 2.0


def test_events_of_other_generations_are_ignored():
    s = job()
    s.run_until(done(s, 3))
    for event in (
        events.Exited(1, 7, -9),
        events.Raised(1, 7, "E", "m", "t", None),
        events.Returned(9, 0, b"", False),
        events.Progressed(1, 7, 999, 999, "", None),
        events.Probed(9, "unknown"),
        events.Noticed(9),
        events.Lost(9, "unknown"),
    ):
        assert s.controller.handle(event, s.now) == []
    assert s.controller.state == "running"


def test_time_does_not_go_back():
    controller = Controller(Elastic(), expected=1)
    controller.handle(events.Ticked(), 5.0)
    with pytest.raises(ValueError, match=r"now must not go back, got 4\.0 after 5\.0; write"):
        controller.handle(events.Ticked(), 4.0)
