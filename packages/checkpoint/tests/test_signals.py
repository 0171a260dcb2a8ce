# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import ctypes
import math
import os
import signal
import threading
import time

import pytest

from dovetail_checkpoint import actions, on_signal


def send(number):
    os.kill(os.getpid(), number)


def wait_for(condition):
    limit = time.monotonic() + 5
    while not condition() and time.monotonic() < limit:
        time.sleep(0.001)  # yields to the thread that listens
    assert condition()


def test_a_signal_is_a_request():
    with on_signal(signal.SIGTERM, grace_s=30.0) as stop:
        assert not stop.requested
        assert not stop.poll(3)
        assert stop.remaining_s == 30.0
        send(signal.SIGTERM)
        wait_for(lambda: stop.requested)
        assert stop.poll(3)
        assert 20.0 < stop.remaining_s < 30.0


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
            time.sleep(1)


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


def test_the_wakeup_descriptor_before_still_hears_and_returns_on_exit():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old = signal.set_wakeup_fd(writer)
    try:
        with on_signal(signal.SIGUSR1) as stop:
            send(signal.SIGUSR1)
            wait_for(lambda: stop.requested)
            assert os.read(reader, 1) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(-1) == writer
    finally:
        signal.set_wakeup_fd(old)
        os.close(reader)
        os.close(writer)


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


@pytest.fixture
def slow_in_c(heard_in_c):
    """The same, with a handler that takes a while."""

    def wait(number):
        heard_in_c.append(number)
        time.sleep(0.2)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(wait)
    ctypes.CDLL(None).signal(int(signal.SIGUSR1), handler)
    yield heard_in_c
    actions.install(signal.SIGUSR1, actions.Action(ctypes.create_string_buffer(512)))
    del handler


def test_a_poll_while_a_handler_in_c_runs_is_no_error(slow_in_c):
    with on_signal(signal.SIGUSR1) as stop:
        send(signal.SIGUSR1)
        wait_for(lambda: slow_in_c)
        assert stop.poll(1)


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


def test_other_signals_are_not_a_request():
    old = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with on_signal(signal.SIGTERM) as stop:
            send(signal.SIGUSR1)
            time.sleep(0.05)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_no_thread_is_left():
    before = threading.active_count()
    with on_signal(signal.SIGTERM):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


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


def test_the_request_is_seen_while_the_main_thread_compiles(run_program):
    seen_after_s, compiled_after_s = map(float, run_program("compile_signal.py").split())
    assert seen_after_s < 0.1
    assert compiled_after_s > seen_after_s + 0.2, "the compilation was too short to prove it"
