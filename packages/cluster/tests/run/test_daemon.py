# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A real daemon with its server and ranks, against a controller that the test plays."""

import itertools
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest

from dovetail_cluster import wire
from dovetail_cluster.events import (
    Answered,
    Commit,
    Dismiss,
    Dump,
    Dumped,
    Exited,
    Kill,
    Noticed,
    Progressed,
    Propose,
    Raised,
    Reserve,
    Reserved,
    Returned,
    Start,
)
from dovetail_cluster.run import messages

RUN = 5
LIMIT_S = 120.0
NUMBERS = itertools.count(100)


class Controller:
    """The other side of one daemon. Sends a beat each second, unless told not to."""

    def __init__(self, *, preload: str = "", key: bytes | None = None):
        self.key, links = wire.new_key(), queue.SimpleQueue()
        self.listener = wire.Listener("127.0.0.1:0", self.key, links.put, limit_s=60.0)
        line = [sys.executable, "-m", "dovetail_cluster.run.daemon", "--place", "4"]
        line += ["--controller", self.listener.address, "--devices", "1", "--preload", preload]
        environment = {**os.environ, wire.KEY: (key or self.key).hex(), "MEGASCALE_X": "1"}
        self.process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL)
        self.received = queue.SimpleQueue()
        self.quiet = threading.Event()
        if key is None:
            self.link = links.get(timeout=LIMIT_S)
            self.link.start(self.received.put, lambda why: None)
            hello = self.wait(messages.Hello)
            assert hello.place == 4
            self.link.send(messages.Welcome(9, tuple(sys.path), "all"))
            threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        while not self.quiet.wait(1.0):
            self.link.send(messages.Beat())

    def wait(self, kind, **fields):
        """The next message, or event of the run, of that kind with these fields."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            message = self.received.get(timeout=LIMIT_S)
            if isinstance(message, messages.RunEvent):
                assert isinstance(message.event, Noticed) or message.run == RUN
                message = message.event
            same = all(getattr(message, name, None) == value for name, value in fields.items())
            if isinstance(message, kind) and same:
                return message
        raise AssertionError(f"no {kind.__name__}")

    def wait_for_steps(self) -> None:
        """Waits until the rank has completed a few steps."""
        while (self.wait(Progressed).step or 0) < 3:
            pass

    def start_rank(self, function, generation: int, *args) -> None:
        self.link.send(messages.Program(RUN, cloudpickle.dumps((function, args))))
        self.link.send(Reserve(9, generation))
        address = self.wait(Reserved, generation=generation).address
        self.link.send(Start(9, generation, 0, 1, address))

    def task(self, function, *args, limit_s: float | None = None) -> messages.TaskDone:
        number = next(NUMBERS)
        self.link.send(messages.Task(number, cloudpickle.dumps((function, args)), limit_s))
        return self.wait(messages.TaskDone, number=number)

    def close(self) -> None:
        self.quiet.set()
        self.listener.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def controller(module_marked):
    controller = Controller()
    controller.wait(messages.Ready)
    yield controller
    controller.link.send(Dismiss(9, "the test is over"))
    assert controller.process.wait(LIMIT_S) == 0
    controller.close()
    assert module_marked() == []


def loop(ctx):
    """A rank that asks on and on."""
    import time

    step = 0
    while not ctx.stop(step):
        ctx.progress.write(step)
        step += 1
        time.sleep(0.005)
    return step


def local(function):
    """The function with a name that makes cloudpickle copy it: ranks cannot import a test."""
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    return function


def test_a_rank_returns_its_value_and_leaves_when_it_may(controller):
    def train(ctx, factor):
        import jax

        return ctx.rank, ctx.hosts, ctx.generation, factor * jax.process_count()

    controller.start_rank(train, 3, 7)
    returned = controller.wait(Returned)
    assert pickle.loads(returned.value) == (0, 1, 3, 7)
    assert not returned.stopped
    controller.link.send(messages.Leave(3))
    assert controller.wait(Exited) == Exited(9, 3, 0)


def test_a_rank_stops_where_it_was_told(controller):
    controller.start_rank(local(loop), 4)
    answer = Answered(9, 4, -1, False, controller.wait(Progressed, generation=4).asked)
    while not answer.accepted:  # on a busy machine the rank may have gone past the question
        controller.link.send(Propose(9, 4, question := answer.asked + 100))
        answer = controller.wait(Answered, question=question)
    while (state := controller.wait(Progressed)).asked != question + 1:
        pass
    assert state.step == question - 1
    controller.link.send(Commit(9, 4, question))
    returned = controller.wait(Returned, generation=4)
    assert returned.stopped
    assert pickle.loads(returned.value) == question
    controller.link.send(messages.Clear(RUN))
    controller.wait(messages.Cleared, run=RUN)


def test_an_exception_comes_with_its_traceback(controller):
    def train(ctx):
        raise KeyError("lost")

    controller.start_rank(train, 5)
    raised = controller.wait(Raised, generation=5)
    assert (raised.kind, raised.message) == ("KeyError", "'lost'")
    assert 'raise KeyError("lost")' in raised.text or "in train" in raised.text
    assert isinstance(pickle.loads(raised.error), KeyError)
    controller.link.send(Kill(9, 5))
    assert controller.wait(Exited, generation=5).code == -signal.SIGKILL
    controller.link.send(Kill(9, 5))  # it is gone already
    assert controller.wait(Exited, generation=5).code == 0


def test_stacks_come_from_a_rank_and_not_from_a_stopped_one(controller):
    controller.start_rank(local(loop), 6)
    controller.wait_for_steps()
    controller.link.send(Dump(9, 6))
    assert "in loop" in controller.wait(Dumped).stacks
    controller.link.send(messages.Fault("stop", 0.0))
    controller.link.send(Dump(9, 6))
    assert controller.wait(Dumped).stacks == ""
    controller.link.send(messages.Fault("kill", 0.0))
    assert controller.wait(Exited, generation=6).code == -signal.SIGKILL


def test_a_reserved_port_is_kept_from_others(controller):
    controller.link.send(messages.Program(RUN, b""))
    controller.link.send(Reserve(9, 8))
    host, port = wire.split(controller.wait(Reserved, generation=8).address)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, port))


def test_a_task_returns_raises_dies_or_takes_too_long(controller):
    def fail():
        raise LookupError("no such thing")

    inside = pickle.loads(controller.task(lambda: dict(__import__("os").environ)).value)
    assert wire.KEY not in inside
    assert "MEGASCALE_X" not in inside
    assert inside["JAX_PLATFORMS"] == "cpu"
    failed = controller.task(fail)
    assert failed.value is None
    assert "LookupError: no such thing" in failed.why
    assert isinstance(pickle.loads(failed.error), LookupError)
    assert "exit code 7" in controller.task(os._exit, 7).why
    assert "exit code -9, or ran longer" in controller.task(time.sleep, 600.0, limit_s=0.2).why


def test_output_comes_in_lines_with_the_name(controller):
    for function, argument, expected in (
        (print, "one\ntwo", ["one", "two"]),
        (lambda text: __import__("os").write(2, text), b"x", ["x"]),
    ):
        controller.link.send(messages.Task(1, cloudpickle.dumps((function, (argument,))), None))
        lines = []
        while len(lines) < len(expected):  # they come in one message or in several
            message = controller.wait(messages.Lines)
            assert message.who == "host 4"
            lines += message.text.split("\n")
        assert lines == expected


@pytest.fixture
def alone(marked):
    """A daemon for one test, and a function that finds its processes."""
    controller = Controller()
    controller.wait(messages.Ready)
    yield controller, marked
    controller.close()


def gone(left) -> bool:
    end = time.monotonic() + LIMIT_S
    while left() and time.monotonic() < end:
        time.sleep(0.02)
    return left() == []


@pytest.mark.capability("no process outlives its daemon")
def test_a_killed_daemon_leaves_no_process(alone):
    controller, left = alone
    controller.start_rank(local(loop), 0)
    controller.wait_for_steps()
    assert len(left()) == 3
    controller.process.kill()
    assert gone(left)


def test_a_daemon_that_loses_its_controller_kills_its_rank(alone):
    controller, left = alone
    controller.start_rank(local(loop), 0)
    controller.wait_for_steps()
    controller.link.close(flush_s=0.0)
    assert controller.process.wait(LIMIT_S) == 3
    assert gone(left)


@pytest.mark.thorough("it waits for ten seconds")
def test_a_daemon_gives_a_silent_controller_up_after_ten_seconds(alone):
    controller, left = alone
    controller.start_rank(local(loop), 0)
    controller.wait_for_steps()  # its messages must not hide the silence of the controller
    controller.quiet.set()
    begin = time.monotonic()
    assert controller.process.wait(LIMIT_S) == 3
    assert time.monotonic() - begin > 8.0
    assert gone(left)


def test_the_first_sigterm_is_a_notice_and_the_second_an_end(alone):
    controller, left = alone
    controller.process.send_signal(signal.SIGTERM)
    assert controller.wait(Noticed) == Noticed(9)
    controller.start_rank(local(loop), 0)
    controller.wait_for_steps()
    controller.process.send_signal(signal.SIGTERM)
    assert controller.process.wait(LIMIT_S) == 0
    assert gone(left)


@pytest.mark.capability("a failing preload is named")
def test_a_failing_preload_is_named_and_ends_the_daemon(marked):
    controller = Controller(preload="json,no_such_module")
    why = controller.wait(messages.Broken).why
    assert "the preloaded module no_such_module cannot be imported" in why
    assert "ModuleNotFoundError" in why
    assert controller.process.wait(LIMIT_S) == 1
    controller.close()
    assert gone(marked)


@pytest.mark.thorough
def test_a_daemon_that_nothing_answers_ends_with_3_and_one_line():
    listener = wire.Listener("127.0.0.1:0", wire.new_key(), lambda link: None)
    address = listener.address
    listener.close()
    line = [sys.executable, "-m", "dovetail_cluster.run.daemon", "--place", "4"]
    environment = {**os.environ, wire.KEY: wire.new_key().hex()}
    ended = subprocess.run(
        [*line, "--controller", address], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 3
    (text,) = ended.stderr.splitlines()
    assert text.startswith(f"place 4: nothing answers at {address}: ")


@pytest.mark.thorough
def test_a_daemon_with_a_wrong_key_ends_with_2():
    controller = Controller(key=wire.new_key())
    assert controller.process.wait(LIMIT_S) == 2
    controller.close()
