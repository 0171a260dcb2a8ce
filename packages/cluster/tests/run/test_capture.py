# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that cannot be pickled, and the names of what stands in the way."""

import pickle
import threading

import pytest

from dovetail_cluster.run.capture import dump

LOCK = threading.Lock()


def test_a_closure_goes_by_value():
    factor = 3
    function, args = pickle.loads(dump(lambda x: factor * x, (2,)))
    assert function(*args) == 6


@pytest.mark.capability("a function that cannot be pickled names its capture")
def test_a_captured_variable_is_named():
    guard, rows = threading.Lock(), [1]

    def train(ctx):
        with guard:
            return rows

    with pytest.raises(TypeError, match=r"got .*train with the variable guard \(lock\): .* make"):
        dump(train, ())


def test_a_capture_of_a_captured_function_is_named_with_the_way():
    guard = threading.Lock()

    def load():
        return [guard for _ in range(3)]

    def train(ctx):
        return load()

    with pytest.raises(TypeError, match=r"with load → the variable guard \(lock\)"):
        dump(train, ())


def test_a_global_is_named():
    function = eval("lambda ctx: LOCK.acquire()", {"LOCK": LOCK})  # of no module, so by value
    with pytest.raises(TypeError, match=r"with the variable LOCK \(lock\)"):
        dump(function, ())


def test_an_argument_is_named():
    with pytest.raises(TypeError, match=r"with argument 1 \(lock\)"):
        dump(lambda ctx, a, b: None, (1, LOCK))


def test_a_call_instead_of_a_function_is_told():
    with pytest.raises(TypeError, match=r"a function must be given, got int; write run\(train\)"):
        dump(3, ())


def test_functions_that_call_each_other_are_no_endless_loop():
    guard = threading.Lock()

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return bool(guard) and even(n - 1)

    with pytest.raises(TypeError, match="the variable guard"):
        dump(even, ())
