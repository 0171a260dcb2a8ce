# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import ctypes
import faulthandler
import signal
import sys

import pytest

from dovetail_checkpoint.stopping import actions

NUMBER = signal.SIGUSR2


@pytest.fixture
def heard():
    """The numbers that a C handler got, which Python does not know of; the old one returns."""
    numbers = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_int)(numbers.append)
    libc = ctypes.CDLL(None)
    libc.signal.restype = libc.signal.argtypes = None
    old = actions.current(NUMBER)
    libc.signal(int(NUMBER), function)
    yield numbers
    actions.install(NUMBER, old)


def test_pythons_and_the_default_actions_are_told_apart():
    assert actions.current(NUMBER).address == signal.SIG_DFL
    assert not actions.current(NUMBER).is_handler
    old = signal.signal(NUMBER, signal.SIG_IGN)
    assert not actions.current(NUMBER).is_handler
    signal.signal(NUMBER, lambda *_: None)
    python = actions.current(NUMBER)
    assert python.is_handler
    assert python.address == actions.current(signal.SIGINT).address
    assert "python" in python.library
    signal.signal(NUMBER, old)


def test_python_does_not_know_a_handler_in_c(heard):
    assert signal.getsignal(NUMBER) == signal.SIG_DFL
    assert actions.current(NUMBER).is_handler
    signal.raise_signal(NUMBER)
    assert heard == [NUMBER]


def test_an_action_returns(heard):
    before = actions.current(NUMBER)
    old = signal.signal(NUMBER, lambda *_: None)
    signal.signal(NUMBER, old)
    assert not actions.current(NUMBER).is_handler  # Python has lost it
    actions.install(NUMBER, before)
    signal.raise_signal(NUMBER)
    assert heard == [NUMBER]


def test_an_action_is_delivered_and_the_present_one_stays(heard):
    before = actions.current(NUMBER)
    ours = []
    old = signal.signal(NUMBER, lambda number, _: ours.append(number))
    actions.deliver(NUMBER, before)
    assert (heard, ours) == ([NUMBER], [])
    signal.raise_signal(NUMBER)
    assert (heard, ours) == ([NUMBER], [NUMBER])
    signal.signal(NUMBER, old)


def test_a_library_is_named():
    faulthandler.register(NUMBER, file=sys.__stderr__)
    assert "python" in actions.current(NUMBER).library
    faulthandler.unregister(NUMBER)
    assert actions.Action(ctypes.create_string_buffer(8)).library == ""


def test_a_signal_that_is_none_is_an_error():
    with pytest.raises(OSError, match="sigaction"):
        actions.install(signal.SIGKILL, actions.current(NUMBER))
