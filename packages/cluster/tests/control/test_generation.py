# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Progress of ranks, and the deadlines for it."""

import pytest

from dovetail_cluster import Elastic
from dovetail_cluster.control.generation import Generation, Rank
from dovetail_cluster.control.stop import AgreedStop
from dovetail_cluster.events import Progressed, Returned

ELASTIC = Elastic(stall_s=10.0, first_step_s=100.0)


def started(count=2):
    ranks = [Rank(i, i + 3, f"h{i}") for i in range(count)]
    return Generation(0, ranks, started=True)


def beat(generation, now):
    for rank in generation.ranks:
        rank.heard_at = now


def say(generation, i, now, step=None, asked=0, phase="", stall_s=None, **begun):
    rank = generation.ranks[i]
    rank.progressed(Progressed(rank.host, 0, step, asked, phase, stall_s, **begun), now)


def stuck(generation, now):
    return [rank.rank for rank in generation.stuck(ELASTIC, now)]


def test_the_first_step_takes_longer():
    generation = started()
    beat(generation, 99.0)  # it compiles, and lives
    assert stuck(generation, 99.9) == []
    assert stuck(generation, 100.0) == [0, 1]
    say(generation, 0, 50.0, step=0)
    assert stuck(generation, 59.9) == []
    assert stuck(generation, 60.0) == [0]  # rank 1 may still compile


@pytest.mark.parametrize(
    "message, progress",
    (
        ({"step": 6, "asked": 7}, True),
        ({"step": 5, "asked": 8}, True),
        ({"step": 5, "asked": 7}, False),  # a sign of life
        ({"step": 4, "asked": 7}, False),
        ({"step": None, "asked": 7}, False),
        ({"step": 5, "asked": 7, "phase": "eval", "stall_s": 30.0}, True),
    ),
)
def test_progress(message, progress):
    generation = started(1)
    say(generation, 0, 1.0, step=5, asked=7)
    say(generation, 0, 9.0, **message)
    assert generation.ranks[0].progressed_at == (9.0 if progress else 1.0)
    assert generation.ranks[0].step == max(5, message["step"] or 0)


def test_an_open_phase_has_its_own_deadline():
    generation = started(1)
    say(generation, 0, 1.0, step=5)
    say(generation, 0, 2.0, step=5, phase="eval", stall_s=30.0)
    assert stuck(generation, 31.9) == []
    assert stuck(generation, 32.0) == [0]
    say(generation, 0, 32.0, step=5)
    assert stuck(generation, 41.9) == []
    assert stuck(generation, 42.0) == [0]


@pytest.mark.capability("a save may take longer than a step, and a hang in it is found")
def test_a_phase_without_a_deadline_has_that_of_the_first_step():
    generation = started(1)
    say(generation, 0, 1.0, step=5)
    say(generation, 0, 2.0, step=5, phase="save")
    generation.ranks[0].heard_at = 95.0
    assert stuck(generation, 101.9) == []
    assert stuck(generation, 102.0) == [0]


@pytest.mark.capability("a rank that is stopped before its first step is found by its silence")
def test_silence_counts_from_the_start_on():
    generation = started(3)
    assert stuck(generation, 9.9) == []
    assert stuck(generation, 10.0) == [0, 1, 2]  # never heard
    beat(generation, 20.0)
    generation.ranks[1].heard_at = 8.0  # it compiled, or waited for the others to join it
    assert stuck(generation, 20.0) == [1]
    assert stuck(generation, 29.9) == [1]


def test_a_rank_that_falls_silent_in_such_a_phase_is_found_as_in_a_step():
    generation = started(2)
    for i, more in enumerate(({}, {"stall_s": 100.0})):
        say(generation, i, 2.0, step=5, phase="save", **more)
    beat(generation, 20.0)
    assert stuck(generation, 29.9) == []
    assert stuck(generation, 30.0) == [0]  # rank 1 has said how long it may take
    brisk = Elastic(stall_s=1.0, first_step_s=100.0)
    assert generation.stuck(brisk, 24.9) == []  # a busy machine delays signs of life
    assert generation.stuck(brisk, 25.0) == [generation.ranks[0]]


def test_ranks_that_have_returned_or_wait_are_not_stuck():
    generation = started(3)
    for i in range(3):
        say(generation, i, 0.0, step=4, asked=5)
    generation.ranks[0].returned = Returned(3, 0, b"", False)
    generation.stop = AgreedStop(generation.hosts)
    assert stuck(generation, 10.0) == [1, 2]
    assert generation.stop.propose(generation.asked) == 6
    say(generation, 1, 1.0, step=5, asked=7)  # waits at question 6
    assert stuck(generation, 11.0) == [2]
    generation.stop.commit()
    assert stuck(generation, 11.0) == []


def test_an_answer_counts_questions():
    rank = Rank(0, 3, "h")
    rank.has_asked(4, 5.0)
    assert (rank.asked, rank.progressed_at, rank.reached_at) == (4, 5.0, 5.0)
    rank.has_asked(4, 6.0)
    assert (rank.progressed_at, rank.reached_at) == (5.0, 5.0)


def late(generation, now):
    return [rank.rank for rank in generation.newly_late(ELASTIC, now)]


@pytest.mark.capability("a rank that the others wait for before the first step is named early")
def test_a_rank_that_stays_behind_before_the_first_step_is_late_once_for_each_place():
    generation = started(3)
    assert late(generation, 90.0) == []  # all are alike
    for i, now in ((0, 91.0), (2, 92.0)):
        say(generation, i, now, activity="init", begun=1)
    assert late(generation, 96.9) == []
    assert late(generation, 97.0) == [1]  # half of stall_s after the last of the others
    assert late(generation, 98.0) == []
    say(generation, 1, 99.0, activity="init", begun=1)
    assert late(generation, 110.0) == []
    for i in (1, 2):
        say(generation, i, 111.0, activity="data", begun=2)
    assert late(generation, 116.0) == [0]
    # The deadline of the first step counts from the start on, whatever was begun.
    assert [rank.progressed_at for rank in generation.ranks] == [0.0] * 3


@pytest.mark.parametrize(
    ("rank_1", "expected"),
    (
        ({"asked": 0}, [1]),  # a loop that asks before its first step
        ({"asked": 1}, []),
        ({"asked": 1, "step": 0}, [0]),
        ({"asked": 1, "phase": "load"}, []),
    ),
)
def test_questions_and_steps_are_places_too(rank_1, expected):
    generation = started()
    say(generation, 0, 1.0, asked=1)
    say(generation, 1, 1.0, **rank_1)
    assert late(generation, 6.0) == expected


def test_no_rank_is_late_after_its_first_step_or_while_the_job_stops():
    generation = started()
    say(generation, 0, 1.0, step=3)
    say(generation, 1, 1.0, step=2)
    assert late(generation, 9.0) == []  # that is a stall of `stall_s`
    stopping = started()
    say(stopping, 0, 1.0, asked=1)
    stopping.stop = AgreedStop(stopping.hosts)
    assert late(stopping, 9.0) == []
    stopping.stop, stopping.ranks[0].gone = None, True
    assert late(stopping, 9.0) == []
