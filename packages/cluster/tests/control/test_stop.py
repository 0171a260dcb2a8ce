# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The proposals of an agreed stop."""

import itertools

from dovetail_cluster.control.stop import NEVER, AgreedStop


def test_all_accept():
    stop = AgreedStop((3, 5))
    assert stop.due
    assert stop.propose(7) == 8
    assert not stop.due
    stop.answer(3, 8, True)
    assert not stop.agreed
    stop.answer(3, 8, True)
    assert not stop.agreed
    stop.answer(5, 8, True)
    assert stop.agreed
    assert not stop.settled
    assert stop.commit() == 8
    assert stop.settled
    assert not stop.due
    assert not stop.agreed


def test_a_refusal_leads_to_later_questions_with_a_wider_margin():
    stop, asked, questions = AgreedStop((0, 1)), 10, []
    for _ in range(5):
        question = stop.propose(asked)
        questions.append(question)
        stop.answer(0, question, True)
        asked = question + 1
        stop.answer(1, question, False)
        assert stop.due
        assert not stop.agreed
    assert [b - a for a, b in itertools.pairwise(questions)] == [3, 5, 9, 17]


def test_answers_to_earlier_questions_do_not_count():
    stop = AgreedStop((0, 1))
    first = stop.propose(0)
    stop.answer(0, first, False)
    second = stop.propose(0)
    assert second > first
    stop.answer(0, first, True)
    stop.answer(1, first, True)
    stop.answer(1, first, False)
    assert not stop.agreed
    assert not stop.due


def test_withdrawn():
    stop = AgreedStop((0,))
    assert stop.withdraw() is None  # nobody waits
    assert not stop.due
    stop = AgreedStop((0,))
    stop.answer(0, stop.propose(0), True)
    assert stop.withdraw() == NEVER
    assert not stop.agreed
