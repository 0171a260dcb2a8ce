# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The context without sockets: agreed stops, progress, phases, meshes."""

import math
import threading
import time

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

from dovetail_cluster.context import AXES, Context, mesh_shape, pump
from dovetail_cluster.events import Answered, Commit, Progressed, Propose


def propose(context: Context, question: int) -> Answered:
    return context._propose(Propose(0, 0, question))


class Asker:
    """A thread that asks `stop` until it says True. `answers` counts the answers so far."""

    def __init__(self, context: Context):
        self.context, self.answers = context, []
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.answers or not self.answers[-1]:
            self.answers.append(self.context.stop(len(self.answers)))

    def waits_at(self, question: int) -> None:
        end = time.monotonic() + 120
        while self.context._state().asked != question + 1 or len(self.answers) != question:
            assert time.monotonic() < end
            time.sleep(0.001)


def test_without_a_proposal_the_answer_is_no():
    context = Context(0, 1, 0)
    assert [context.stop(step) for step in range(5)] == [False] * 5
    assert context._state().asked == 5


@pytest.mark.capability("an agreed stop")
def test_a_rank_waits_at_the_question_until_the_commit_and_then_always_stops():
    context = Context(0, 2, 0)
    assert propose(context, 3) == Answered(0, 0, 3, True, 0)
    asker = Asker(context)
    asker.thread.start()
    asker.waits_at(3)
    context._commit(Commit(0, 0, 3))
    asker.thread.join(120)
    assert asker.answers == [False, False, False, True]
    assert context.stop(9)
    assert context._stopped


def test_a_rank_refuses_a_question_that_it_has_answered():
    context = Context(0, 2, 0)
    for step in range(4):
        context.stop(step)
    assert propose(context, 3) == Answered(0, 0, 3, False, 4)
    assert not context.stop(4)  # it does not wait there
    assert propose(context, 5) == Answered(0, 0, 5, True, 5)


def test_a_waiting_rank_goes_on_to_a_later_question():
    context = Context(0, 2, 0)
    propose(context, 1)
    asker = Asker(context)
    asker.thread.start()
    asker.waits_at(1)
    assert propose(context, 4) == Answered(0, 0, 4, True, 2)
    asker.waits_at(4)
    context._commit(Commit(0, 0, 4))
    asker.thread.join(120)
    assert asker.answers == [False, False, False, False, True]


def test_a_waiting_rank_accepts_its_question_again():
    context = Context(0, 2, 0)
    propose(context, 1)
    asker = Asker(context)
    asker.thread.start()
    asker.waits_at(1)
    assert propose(context, 1) == Answered(0, 0, 1, True, 2)
    context._commit(Commit(0, 0, 1))
    asker.thread.join(120)


def test_another_thread_waits_too():
    context = Context(0, 2, 0)
    propose(context, 1)
    asker, second = Asker(context), Asker(context)
    asker.thread.start()
    asker.waits_at(1)
    second.thread.start()
    end = time.monotonic() + 120
    while context._state().asked < 3 and time.monotonic() < end:
        time.sleep(0.001)
    second.thread.join(0.1)
    assert second.thread.is_alive()
    context._commit(Commit(0, 0, 1))
    for each in (asker, second):
        each.thread.join(120)
    assert second.answers == [True]


def test_a_commit_before_the_question_is_kept():
    context = Context(0, 2, 0)
    propose(context, 2)
    context._commit(Commit(0, 0, 2))
    assert [context.stop(step) for step in range(4)] == [False, False, True, True]


@given(st.integers(0, 6), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_two_ranks_stop_at_the_same_question(asked, margins):
    """As the controller does it: later questions until both accept, then the commit."""
    contexts = [Context(rank, 2, 0) for rank in range(2)]
    for step in range(asked):
        contexts[0].stop(step)
    askers = [Asker(context) for context in contexts]
    question = 0
    for margin in [*margins, 10]:
        accepted = [propose(context, question).accepted for context in contexts]
        assert accepted[1] or question < contexts[1]._state().asked
        if all(accepted):
            break
        question = max(context._state().asked for context in contexts) + margin
    else:
        assert all(propose(context, question).accepted for context in contexts)
    for asker in askers:
        asker.thread.start()
    for context in contexts:
        context._commit(Commit(0, 0, question))
    for asker in askers:
        asker.thread.join(120)
    counts = [len(asker.answers) for asker in askers]
    assert [counts[0] + asked, counts[1]] == [question + 1, question + 1]


def test_progress_is_the_last_step_and_is_written_on_every_rank():
    context = Context(1, 2, 3, host=7)
    assert context.progress.everywhere
    assert context._state() == Progressed(7, 3, None, 0, "", None)
    context.progress.begin_activity("restore")
    context.progress.begin_activity("compile")
    assert context._state()[-2:] == ("compile", 2)
    context.progress.write(4, {"loss": math.nan})
    context.progress.write(5)
    assert context._state().step == 5
    context.progress.close()


def test_the_innermost_phase_counts():
    context = Context(0, 1, 0)
    with context.phase("eval", stall_s=60.0):
        with context.phase("export", stall_s=600.0):
            assert context._state()[4:6] == ("export", 600.0)
        assert context._state()[4:6] == ("eval", 60.0)
    assert context._state()[4:6] == ("", None)


def test_a_phase_may_leave_its_deadline_to_the_job():
    context = Context(0, 1, 0)
    with context.phase("save"):
        assert context._state()[4:6] == ("save", None)


@pytest.mark.parametrize(("name", "stall_s"), [("", 1.0), ("eval", 0.0), ("eval", math.nan)])
def test_a_phase_needs_a_name_and_a_deadline(name, stall_s):
    with (
        pytest.raises(ValueError, match=r"must have a name and a deadline .* got name=.*; write"),
        Context(0, 1, 0).phase(name, stall_s=stall_s),
    ):
        pass


def test_a_stall_sleeps_once_in_the_next_call():
    context = Context(0, 1, 0)
    for call in (context.stop, context.progress.write):
        context._stall_s = 0.2
        begin = time.monotonic()
        call(0)
        assert time.monotonic() - begin >= 0.2
        assert context._stall_s == 0.0


def test_only_the_first_rank_has_sinks():
    assert Context(0, 2, 0).only_first(["console"]) == ["console"]
    assert list(Context(1, 2, 0).only_first(["console"])) == []


def test_the_pump_sends_changes_and_signs_of_life():
    context, ended, sent = Context(0, 1, 0), threading.Event(), []
    received = threading.Semaphore(0)

    def send(state: Progressed) -> None:
        sent.append(state)
        received.release()

    limits = {"least_s": 0.001, "most_s": 0.05}
    thread = threading.Thread(target=pump, args=(context, send, ended), kwargs=limits)
    thread.start()
    assert received.acquire(timeout=120)
    context.progress.write(1)
    while sent[-1].step != 1:
        assert received.acquire(timeout=120)
    count = len(sent)
    while len(sent) < count + 3:  # the same state again: signs of life
        assert received.acquire(timeout=120)
    ended.set()
    thread.join(120)
    assert {state.step for state in sent} == {None, 1}


@given(st.dictionaries(st.sampled_from(AXES), st.integers(1, 4)), st.sampled_from(AXES))
def test_an_axis_of_minus_one_takes_the_rest(sizes, free):
    given_sizes = math.prod(size for axis, size in sizes.items() if axis != free)
    count = 3 * given_sizes
    shape = mesh_shape({**sizes, free: -1}, count)
    expected = {axis: sizes.get(axis, 1) for axis in AXES} | {free: 3}
    assert shape == tuple(expected.values())


@pytest.mark.capability("a mesh that does not divide lists what does")
@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ({"data": 5}, r"must be the number of devices, 6, got 5 .* are 1, 2, 3, 6: write"),
        ({"data": 4, "fsdp": -1}, r"must divide the number of devices, 6, got 4 of .* write"),
        ({"data": -1, "fsdp": -1}, r"one size at most must be -1, got data and fsdp; write"),
        ({"data": 0}, r"at least 1, or -1 for the rest, got data=0; write data=-1"),
        ({"model": 2}, r"axes must be among stage, .*, got model; write mesh\(data=-1\)"),
    ],
)
def test_a_wrong_mesh_says_what_is_right(axes, text):
    with pytest.raises(ValueError, match=text):
        mesh_shape(axes, 6)


def test_a_size_is_a_whole_number():
    with pytest.raises(TypeError, match=r"a whole number, got data=True; write data=-1"):
        mesh_shape({"data": True}, 6)


def test_the_mesh_has_all_devices_and_auto_axes():
    mesh = Context(0, 1, 0).mesh(data=-1)
    assert mesh.axis_names == AXES
    assert mesh.shape["data"] == len(jax.devices())
    assert set(mesh.axis_types) == {AxisType.Auto}
