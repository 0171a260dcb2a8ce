# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Single decisions of the controller, event by event."""

import pytest

from dovetail_cluster import Elastic, RankError, events
from dovetail_cluster.control.controller import DUMP_S, EXIT_S, GRACE_S, Controller
from dovetail_cluster.control.stop import NEVER


class Hand:
    """A controller with hosts 0, 1, ... that are healthy, and its generation 0 on all of them."""

    def __init__(self, count=2, *, started=True, **options):
        self.controller = Controller(Elastic(**options), expected=count)
        self.now = 0.0
        self.said = ""
        for host in range(count):
            self(events.Joined(host, "abcd"[host]))
        for host in range(count):
            self(events.Probed(host, None))
        if started:
            self.start(0, count)

    def __call__(self, event, after_s=0.0):
        """Handles an event, and returns the actions but the lines for the user."""
        self.now += after_s
        actions = self.controller.handle(event, self.now)
        self.said += "\n".join(a.text for a in actions if isinstance(a, events.Say))
        return [a for a in actions if not isinstance(a, events.Say)]

    def start(self, generation, count):
        actions = self(events.Reserved(0, generation, "a:1"))
        assert actions == [events.Start(i, generation, i, count, "a:1") for i in range(count)]

    def progress(self, *hosts, generation=0, step=None, asked=0):
        for host in hosts:
            actions = self(events.Progressed(host, generation, step, asked, "", None))
        return actions

    def throw(self, host, generation=0):
        return self(events.Raised(host, generation, "ValueError", "bad", "Traceback of bad", None))


def to(kind, hosts, *arguments):
    return [kind(host, 0, *arguments) for host in hosts]


def test_the_port_is_reserved_on_the_first_host():
    hand = Hand(started=False)
    assert hand(events.Reserved(1, 0, "b:1")) == []
    assert hand.controller.state == "starting"
    hand.start(0, 2)
    assert hand(events.Reserved(0, 0, "a:2")) == []
    hand.progress(0)
    assert hand.controller.state == "starting"
    hand.progress(1)
    assert hand.controller.state == "running"


@pytest.mark.parametrize(
    "event",
    (events.Lost(0, "gone"), events.Lost(1, "gone"), events.Probed(1, "sick"), events.Noticed(1)),
)
def test_a_host_that_fails_before_the_start(event):
    hand = Hand(3, started=False, hosts=(2, 3))
    actions = hand(event)
    first = 1 if event.host == 0 else 0
    assert actions[-1] == events.Reserve(first, 1)
    assert hand(events.Reserved(0, 0, "a:1")) == []  # too late
    assert len(hand(events.Reserved(first, 1, "a:2"))) == 2


def test_one_more_host_before_the_start():
    hand = Hand(2, started=False, hosts=(2, 3))
    hand(events.Joined(2, "c"))
    assert hand(events.Probed(2, None)) == [events.Reserve(0, 1)]


def test_a_resize_before_the_start():
    hand = Hand(2, started=False, hosts=(1, 2))
    assert hand(events.Resized(0)) == []
    assert hand.controller.state == "suspended"
    assert hand(events.Resized(1)) == [events.Reserve(0, 1)]


def test_a_crash_kills_at_once_and_probes_when_all_are_gone():
    hand = Hand(3)
    hand.progress(0, 1, 2, step=3)
    assert hand(events.Exited(1, 0, -9)) == to(events.Kill, (0, 2))
    assert hand.controller.live == [(0, 0), (2, 0)]
    assert hand(events.Exited(0, 0, -9)) == []
    assert hand(events.Exited(2, 0, -9)) == [events.Probe(host) for host in range(3)]
    assert "rank 1 on b was killed by signal 9 (SIGKILL); 4 restarts" in hand.said
    assert "rank 0 on a was" not in hand.said


def test_an_abort_waits_for_its_origin():
    hand = Hand(3)
    assert hand(events.Exited(1, 0, -6)) == []
    assert hand(events.Exited(2, 0, -9)) == [events.Kill(0, 0)]
    hand = Hand(3)
    assert hand(events.Exited(1, 0, -6)) == []
    assert hand(events.Ticked(), GRACE_S) == to(events.Kill, (0, 2))


def test_an_exception_waits_for_its_origin():
    hand = Hand(3)
    assert hand.throw(0) == []
    assert hand(events.Ticked(), GRACE_S - 0.1) == []
    assert hand(events.Ticked(), 0.1) == to(events.Kill, (0, 1, 2))
    hand = Hand(3)
    assert hand.throw(0) == []
    assert hand(events.Lost(1, "gone")) == to(events.Kill, (0, 2))
    hand = Hand(2)
    assert hand.throw(0) == []
    assert hand.throw(1) == to(events.Kill, (0, 1))  # nothing more can come


@pytest.mark.parametrize(
    "after, cause",
    (
        ([events.Exited(0, 0, 1)], "exception"),
        ([events.Exited(0, 0, -6)], "exception"),  # an abort in its teardown
        ([events.Exited(0, 0, 1), events.Lost(0, "gone")], "exception"),
        ([events.Lost(1, "gone"), events.Exited(0, 0, 1)], "crash"),
    ),
)
def test_the_cause_of_an_exception(after, cause):
    hand = Hand(2, hosts=(1, 2))
    hand.throw(0)
    for event in after:
        hand(event)
    hand(events.Ticked(), GRACE_S)
    hand(events.Exited(0, 0, -9))
    hand(events.Exited(1, 0, -9))
    assert f"restarts are left for {cause}" in hand.said
    assert ("Traceback of bad" in hand.said) == (cause == "exception")


def test_what_comes_after_the_kill_is_no_cause():
    hand = Hand(2)
    hand(events.Exited(1, 0, 3))
    hand(events.Ticked(), GRACE_S)
    hand.throw(0)
    hand(events.Exited(0, 0, 1))
    assert "rank 1 on b exited with code 3 without a result; 4 restarts" in hand.said


def test_the_port_code_of_a_rank_that_has_begun_is_a_crash():
    hand = Hand(1, budget={"crash": 1})
    hand.progress(0, asked=1)
    hand(events.Exited(0, 0, events.PORT_TAKEN), GRACE_S)
    assert "exited with code 98 without a result; 0 restarts are left for crash" in hand.said


def test_a_taken_port_does_not_hide_a_lost_host():
    hand = Hand(2, hosts=(1, 2))
    hand(events.Exited(0, 0, events.PORT_TAKEN))
    hand(events.Lost(1, "gone"))
    assert "rank 1 on b was lost: gone" in hand.said
    assert "4 restarts are left for crash" in hand.said


def test_ports_may_be_taken_again_later():
    hand = Hand(1, budget={"crash": 99})
    for generation in range(0, 24, 2):
        actions = hand(events.Exited(0, generation, events.PORT_TAKEN))
        assert actions == [events.Reserve(0, generation + 1)]
        hand(events.Reserved(0, generation + 1, "a:1"))
        hand.progress(0, generation=generation + 1, step=generation)
        hand(events.Exited(0, generation + 1, -9))
        assert hand(events.Probed(0, None)) == [events.Reserve(0, generation + 2)]
        hand(events.Reserved(0, generation + 2, "a:1"))


def test_a_stall_waits_for_stacks():
    hand = Hand(2, stall_s=5.0)
    hand.progress(0, 1, step=1)
    assert hand(events.Ticked(), 5.0) == to(events.Dump, (0, 1))
    assert hand.controller.state == "stuck"
    assert hand(events.Dumped(0, 0, "")) == []
    assert hand(events.Dumped(1, 0, ""), 0.5) == to(events.Kill, (0, 1))
    assert hand.controller.state == "restarting"
    hand = Hand(2, stall_s=5.0)
    hand.progress(0, 1, step=1)
    hand(events.Ticked(), 5.0)
    assert hand(events.Ticked(), DUMP_S) == to(events.Kill, (0, 1))


def test_a_stall_does_not_wait_for_the_stacks_of_a_rank_that_has_returned():
    hand = Hand(2, stall_s=5.0)
    hand.progress(0, 1, step=1)
    hand(events.Returned(0, 0, b"x", False))
    assert hand(events.Ticked(), 5.0) == to(events.Dump, (1,))
    assert hand(events.Dumped(1, 0, ""), 0.1) == to(events.Kill, (0, 1))


def test_a_stall_of_a_host_that_turns_out_lost_is_a_crash():
    hand = Hand(2, stall_s=5.0)
    hand.progress(0, 1, step=1)
    hand(events.Ticked(), 5.0)
    hand(events.Ticked(), DUMP_S)
    hand(events.Exited(0, 0, -9))
    hand(events.Lost(1, "no word for 10 s"))
    assert "rank 1 on b was lost: no word for 10 s; 4 restarts are left" in hand.said


def test_results_during_a_stall_end_the_job():
    hand = Hand(1, stall_s=5.0)
    hand.progress(0, step=1)
    assert hand(events.Ticked(), 5.0) == to(events.Dump, (0,))
    assert hand(events.Returned(0, 0, b"x", False)) == [events.Finish((b"x",))]


def test_a_rank_that_is_lost_after_its_result():
    hand = Hand(2)
    hand(events.Returned(0, 0, b"x", False))
    assert hand(events.Lost(0, "gone")) == []
    assert hand.controller.state == "starting"
    assert hand(events.Returned(1, 0, b"y", False)) == [events.Finish((b"x", b"y"))]


def test_one_stopped_rank_makes_another_generation():
    hand = Hand(2)
    hand(events.Returned(0, 0, b"x", False))
    assert hand(events.Returned(1, 0, b"y", True)) == []
    hand(events.Exited(0, 0, 0))
    assert hand(events.Ticked(), EXIT_S) == [events.Kill(1, 0)]
    assert hand(events.Exited(1, 0, -9)) == [events.Reserve(0, 1)]


def test_an_agreed_stop():
    hand = Hand(2, hosts=(1, 2))
    assert hand(events.Noticed(1)) == []
    assert hand.controller.state == "draining"
    assert hand.progress(0, asked=4) == []  # rank 1 has not been heard
    assert hand.progress(1, asked=3) == to(events.Propose, (0, 1), 5)
    assert hand(events.Answered(0, 0, 5, True, 5)) == []
    assert hand(events.Answered(1, 0, 5, False, 7)) == to(events.Propose, (0, 1), 9)
    assert hand(events.Answered(1, 0, 9, True, 8)) == []
    assert hand(events.Answered(0, 0, 9, True, 8)) == to(events.Commit, (0, 1), 9)
    hand(events.Returned(0, 0, b"", True))
    assert hand(events.Returned(1, 0, b"", True)) == []
    assert hand(events.Exited(0, 0, 0)) == []
    assert hand(events.Exited(1, 0, 0)) == [
        events.Dismiss(1, "it will be taken away"),
        events.Reserve(0, 1),
    ]


def test_a_result_withdraws_a_proposal():
    hand = Hand(3, hosts=(2, 3))
    hand.progress(0, 1, 2, asked=4)
    assert hand(events.Noticed(1)) == to(events.Propose, (0, 1, 2), 5)
    hand(events.Answered(0, 0, 5, True, 5))
    assert hand(events.Returned(1, 0, b"", False)) == to(events.Propose, (0, 2), NEVER)
    assert hand.controller.state == "running"
    for host in (0, 2):
        assert hand(events.Answered(host, 0, NEVER, True, 5)) == []
    hand(events.Returned(0, 0, b"", False))
    assert hand(events.Returned(2, 0, b"", False)) == [events.Finish((b"", b"", b""))]


def test_no_stop_is_proposed_after_a_result():
    hand = Hand(2, hosts=(1, 2))
    hand.progress(0, 1, asked=4)
    hand(events.Returned(0, 0, b"", False))
    assert hand(events.Noticed(1)) == []
    assert hand.controller.state == "running"
    assert "agreed" not in hand.said


def test_a_committed_stop_is_not_withdrawn():
    hand = Hand(2, hosts=(1, 2))
    hand.progress(0, 1, asked=4)
    hand(events.Noticed(1))
    for host in (0, 1):
        hand(events.Answered(host, 0, 5, True, 5))
    assert hand(events.Returned(0, 0, b"", True)) == []
    assert hand.controller.state == "draining"


def test_more_hosts_wait_for_the_first_step():
    hand = Hand(3, hosts=(2, 3), started=False)
    hand(events.Lost(2, "gone"))
    hand(events.Reserved(0, 1, "a:1"))
    hand(events.Joined(3, "d"))
    hand(events.Probed(3, None))
    assert hand.progress(0, 1, generation=1) == []
    assert hand.progress(0, generation=1, step=0) == []
    assert hand.controller.state == "running"
    assert hand.progress(1, generation=1, step=0) == []  # until the next tick
    assert hand(events.Ticked()) == [events.Propose(host, 1, 1) for host in (0, 1)]


@pytest.mark.parametrize("lost", (False, True))
def test_a_drain_that_is_cut_off_is_no_failure_unless_a_host_is_lost(lost):
    hand = Hand(2, hosts=(1, 2), drain_s=9.0)
    hand.progress(0, 1, asked=4)
    hand(events.Noticed(1))
    assert hand(events.Ticked(), 9.0) == to(events.Kill, (0, 1))
    hand(events.Exited(0, 0, -9))
    hand(events.Lost(1, "gone") if lost else events.Exited(1, 0, -9))
    assert ("restarts are left for crash" in hand.said) == lost
    assert hand(events.Probed(0, None)) == [events.Reserve(0, 1)]


def test_a_sick_host_is_probed_again_after_a_failure():
    hand = Hand(3, hosts=(1, 2), started=False)
    hand(events.Probed(0, "sick"))
    assert hand(events.Reserved(1, 1, "b:1"))[0] == events.Start(1, 1, 0, 2, "b:1")
    hand(events.Exited(1, 1, -9))
    assert hand(events.Exited(2, 1, -9)) == [events.Probe(host) for host in range(3)]
    hand(events.Probed(0, None))
    hand(events.Probed(1, "sick"))
    assert hand(events.Probed(2, None)) == [events.Reserve(0, 2)]


def test_an_error_ends_the_job():
    hand = Hand(1, budget={"exception": 0})
    assert hand.throw(0) == [events.Kill(0, 0)]
    (fail,) = hand(events.Exited(0, 0, 1))
    assert isinstance(fail, events.Fail)
    assert isinstance(fail.error, RankError)
    assert hand(events.Ticked(), 99.0) == []
    assert hand.controller.live == []


def test_a_rank_that_waits_for_the_others_is_alive_and_has_not_joined():
    hand = Hand(2, stall_s=10.0)
    hand.progress(0)
    assert hand(events.Lives(1, 0), 9.0) == []
    assert hand.controller.state == "starting"
    hand(events.Progressed(0, 0, None, 0, "", None), 9.0)
    assert hand(events.Ticked(), 0.9) == []
    assert hand(events.Ticked(), 0.1) == to(events.Dump, (0, 1))
    hand(events.Ticked(), DUMP_S)
    assert hand.said.splitlines()[-1] == "    (no stack)"
    assert "The job is stuck: rank 1 on b completed no step for" in hand.said
