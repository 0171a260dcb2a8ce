# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import ctypes
import math
import os
import select
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from dovetail_checkpoint import on_signal
from dovetail_checkpoint.stopping import actions, signals

HANG_S = 120  # only what never comes takes this long


def send(number):
    os.kill(os.getpid(), number)


def wait_for(condition):
    limit = time.monotonic() + HANG_S
    while not condition() and time.monotonic() < limit:
        time.sleep(0.001)  # yields to the thread that listens
    assert condition()


@pytest.fixture
def clock(monkeypatch):
    """The clock of the requests; `now` is set by hand."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def heard_before():
    """A descriptor with the numbers that the wakeup descriptor of before gets."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old = signal.set_wakeup_fd(writer)
    yield reader
    assert signal.set_wakeup_fd(old) == writer
    os.close(reader)
    os.close(writer)


def next_of(reader):
    """The next number on the descriptor."""
    assert select.select([reader], [], [], HANG_S)[0]
    return os.read(reader, 1)[0]


def test_a_signal_is_a_request():
    with on_signal(signal.SIGTERM) as stop:
        assert not stop.requested
        assert not stop.poll(3)
        send(signal.SIGTERM)
        wait_for(lambda: stop.requested)
        assert stop.poll(3)


def test_remaining_time_counts_from_the_first_signal(clock):
    with on_signal(signal.SIGTERM, grace_s=30.0) as stop:
        clock.now += 7
        assert stop.remaining_s == 30.0
        for _ in range(2):
            send(signal.SIGTERM)
            wait_for(lambda: stop.requested)
            clock.now += 12
        assert stop.remaining_s == 6.0
        clock.now += 12
        assert stop.remaining_s == 0.0


def test_remaining_time_ends_at_zero():
    with on_signal(signal.SIGTERM, grace_s=0.0) as stop:
        send(signal.SIGTERM)
        wait_for(lambda: stop.requested)
        assert stop.remaining_s == 0.0


def test_the_second_interrupt_is_a_keyboard_interrupt():
    with on_signal(signal.SIGINT, signal.SIGTERM) as stop:
        send(signal.SIGINT)
        wait_for(lambda: stop.requested)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            send(signal.SIGINT)
            threading.Event().wait(HANG_S)


def test_a_second_terminate_is_the_same_request():
    with on_signal(signal.SIGTERM) as stop:
        for _ in range(3):
            send(signal.SIGTERM)
        wait_for(lambda: stop.requested)


def test_handlers_before_still_run_and_return_on_exit():
    seen = []

    def before(number, frame):
        seen.append(number)

    old = signal.signal(signal.SIGUSR1, before)
    try:
        with on_signal(signal.SIGUSR1) as outer:
            with on_signal(signal.SIGUSR1) as inner:
                send(signal.SIGUSR1)
                wait_for(lambda: inner.requested and outer.requested and seen)
            assert signal.getsignal(signal.SIGUSR1) == outer._handle
        assert signal.getsignal(signal.SIGUSR1) is before
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_the_wakeup_descriptor_before_still_hears_and_returns_on_exit(heard_before):
    with on_signal(signal.SIGUSR1) as stop:
        send(signal.SIGUSR1)
        assert next_of(heard_before) == signal.SIGUSR1
        assert stop.requested


def test_a_wakeup_descriptor_that_was_closed_does_not_deafen():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old = signal.set_wakeup_fd(writer)
    with on_signal(signal.SIGUSR1) as stop:
        os.close(writer)
        send(signal.SIGUSR1)
        wait_for(lambda: stop.requested)
        heard = stop._first_s
        stop._first_s = math.inf
        send(signal.SIGUSR1)
        wait_for(lambda: stop.requested)
        assert stop._first_s > heard
        os.dup2(reader, writer)  # a descriptor to give back
        os.set_blocking(writer, False)
    signal.set_wakeup_fd(old)
    os.close(reader)
    os.close(writer)


@pytest.fixture
def heard_in_c():
    """The numbers that a C handler of SIGUSR1 got, of which Python knows nothing."""
    numbers = []
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(numbers.append)
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    old = actions.current(signal.SIGUSR1)
    libc.signal(int(signal.SIGUSR1), handler)
    yield numbers
    actions.install(signal.SIGUSR1, old)


def test_a_handler_in_c_still_runs_and_returns_on_exit(heard_in_c):
    before = actions.current(signal.SIGUSR1)
    with on_signal(signal.SIGUSR1) as outer, on_signal(signal.SIGUSR1) as inner:
        for count in (1, 2):
            send(signal.SIGUSR1)
            wait_for(lambda count=count: len(heard_in_c) == count)
        assert inner.requested
        assert outer.requested
    assert actions.current(signal.SIGUSR1).address == before.address
    send(signal.SIGUSR1)
    wait_for(lambda: heard_in_c == [signal.SIGUSR1] * 3)


class Announced:
    """A lock that sets an event before the main thread waits for it."""

    def __init__(self, lock, wanted):
        self.lock, self.wanted = lock, wanted

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.wanted.set()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


@pytest.fixture
def slow_in_c(heard_in_c):
    """The same, with a handler that runs until the event beside the numbers is set."""
    go = threading.Event()

    def wait(number):
        heard_in_c.append(number)
        go.wait(HANG_S)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(wait)
    ctypes.CDLL(None).signal(int(signal.SIGUSR1), handler)
    yield heard_in_c, go
    actions.install(signal.SIGUSR1, actions.Action(ctypes.create_string_buffer(512)))
    del handler


def test_a_poll_while_a_handler_in_c_runs_is_no_error(slow_in_c, monkeypatch):
    numbers, go = slow_in_c
    with on_signal(signal.SIGUSR1) as stop:
        # The handler ends once the poll waits for it.
        monkeypatch.setattr(stop, "_changing", Announced(stop._changing, go))
        send(signal.SIGUSR1)
        wait_for(lambda: numbers)
        try:
            assert stop.poll(1)
            assert go.is_set(), "poll must wait for the handler"
        finally:
            go.set()


def test_a_handler_that_takes_the_place_of_ours_is_an_error(heard_in_c):
    theirs = actions.current(signal.SIGUSR1)
    with on_signal(signal.SIGUSR1) as stop:
        assert not stop.poll(1)
        actions.install(signal.SIGUSR1, theirs)
        with pytest.raises(
            RuntimeError,
            match=r"handler of SIGUSR1 must stay.*got one of another library.*enter on_signal aft",
        ):
            stop.poll(2)


def test_a_request_lasts():
    with on_signal(signal.SIGTERM) as stop:
        send(signal.SIGTERM)
        wait_for(lambda: stop.poll(1))
        assert stop.poll(2)
    assert stop.poll(3)


def test_other_signals_are_not_a_request(heard_before):
    old = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with on_signal(signal.SIGTERM) as stop:
            send(signal.SIGUSR1)
            assert next_of(heard_before) == signal.SIGUSR1  # passed on once it was looked at
            assert not stop.requested
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_no_thread_is_left():
    def listening():
        return [thread.name for thread in threading.enumerate()].count("dovetail-signals")

    with on_signal(signal.SIGTERM):
        assert listening() == 1
    assert listening() == 0


def test_another_thread_is_refused():
    caught = []

    def enter():
        with pytest.raises(RuntimeError) as error, on_signal(signal.SIGTERM):
            pass
        caught.append(str(error.value))

    thread = threading.Thread(target=enter, name="worker")
    thread.start()
    thread.join()
    assert "entered on the main thread" in caught[0]
    assert "got thread='worker'; enter it there" in caught[0]


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"at least one signal, got none; on_signal\("):
        on_signal()
    with pytest.raises(ValueError, match=r"process may catch, got SIGKILL; use signal.SIGTERM"):
        on_signal(signal.SIGTERM, signal.SIGKILL)
    with pytest.raises(ValueError, match=r"0 or more seconds, got grace_s=-1.0; use 30"):
        on_signal(signal.SIGTERM, grace_s=-1.0)


def test_the_request_is_seen_while_the_main_thread_is_in_c():
    libc = ctypes.CDLL(None)
    mutex, condition = (ctypes.create_string_buffer(128) for _ in range(2))  # larger than theirs
    libc.pthread_mutex_init(mutex, None)
    libc.pthread_cond_init(condition, None)
    seen = []

    def send_and_watch(stop):
        libc.pthread_mutex_lock(mutex)  # the main thread gives it up as it begins to wait
        send(signal.SIGTERM)
        limit = time.monotonic() + HANG_S
        while not stop.requested and time.monotonic() < limit:
            time.sleep(0.001)
        seen.append(stop.requested)
        libc.pthread_cond_signal(condition)
        libc.pthread_mutex_unlock(mutex)

    with on_signal(signal.SIGTERM) as stop:
        watcher = threading.Thread(target=send_and_watch, args=(stop,))
        libc.pthread_mutex_lock(mutex)
        watcher.start()
        libc.pthread_cond_wait(condition, mutex)
        libc.pthread_mutex_unlock(mutex)
        watcher.join()
    assert seen == [True]


def test_the_request_is_seen_while_the_main_thread_compiles(run_program):
    assert run_program("compile_signal.py", devices=2) == "seen\n"
