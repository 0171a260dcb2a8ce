# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of an export that do not end are told while they run, and given up."""

import gc
import importlib.util
import logging
import threading
import time

import numpy as np
import pytest

from dovetail_serve import Tensor, export
from dovetail_serve.exporting import limits
from dovetail_serve.exporting.limits import OvertimeError, limited, wait_for

USER = """\
def fn(params, *, x):
    total = x
    while True:
        try:
            total = total * 1
        except Exception:
            pass
    return {"y": total}
"""


@pytest.fixture
def often(monkeypatch, caplog):
    """Progress every 20 ms, in this log."""
    monkeypatch.setattr(limits, "_INTERVAL_S", 0.02)
    monkeypatch.setattr(limits, "_AGAIN_S", 0.05)
    caplog.set_level(logging.DEBUG, "dovetail_serve")
    # In one of its callbacks an interruption would be printed, which pytest takes for an error.
    gc.disable()
    yield caplog
    gc.enable()


def test_a_trace_that_never_ends_names_the_users_line(often, tmp_path):
    file = tmp_path / "users_model.py"
    file.write_text(USER)
    spec = importlib.util.spec_from_file_location("users_model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match=r"fn must be traced within 0\.3 s") as caught:
        export(
            module.fn,
            {},
            inputs={"x": Tensor(("batch", 3), "float32")},
            example={"x": np.ones((2, 3), "float32")},
            platforms=("cpu",),
            batch_sizes=(2,),
            limit_s=0.3,
        )
    message = str(caught.value)
    assert any(f"at {file}:{line} (" in message for line in (3, 4, 5, 6, 7))
    assert "got no end of tracing fn for 2 rows on cpu" in message
    assert message.endswith("give it more time with limit_s=3")
    lines = [record.getMessage() for record in often.records]
    assert lines[0] == "tracing fn for 2 rows on cpu"
    assert lines[1] == "still tracing fn for 2 rows on cpu, after 0 s of at most 0.3 s"


def test_code_that_catches_the_interruption_is_interrupted_again(often):
    caught = []

    def stubborn():
        while True:
            try:
                while True:
                    time.sleep(0)
            except BaseException as error:
                caught.append(type(error))
                if len(caught) == 2:
                    raise

    with pytest.raises(ValueError, match="got no end of counting at "):
        limited(stubborn, "counting", 0.1)
    assert len(set(caught)) == 1


def test_work_that_ends_in_time_is_left_alone(often):
    """Also where its end and the limit meet: an interruption that came late would be raised."""
    ends = []
    for i in range(60):
        try:
            limited(lambda i=i: time.sleep(0.0005 * (i % 5)), "a step", 0.001)
        except ValueError as error:
            ends.append(str(error))
        for _ in range(200):
            assert i >= 0
    assert len(ends) < 60
    assert all("fn must be traced within" in end for end in ends)


def test_compiled_code_may_make_the_interruption_a_cause(often):
    """NumPy asks a type of JAX for its dtype, and CPython says so if that is interrupted."""

    def compiled():
        try:
            while True:
                time.sleep(0)
        except BaseException as error:
            raise SystemError("it returned a result with an exception set") from error

    with pytest.raises(ValueError, match=r"got no end of counting at .*test_limits\.py"):
        limited(compiled, "counting", 0.1)


@pytest.mark.parametrize("kind", [KeyError, SystemError])
def test_errors_of_a_block_pass(kind):
    def fail():
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        limited(fail, "a step", 10.0)


def test_waiting_tells_progress_and_ends(often):
    waiting = threading.Event()
    try:
        with pytest.raises(OvertimeError):
            wait_for(waiting.wait, "running fn", 0.1)
    finally:
        waiting.set()
    lines = [record.getMessage() for record in often.records]
    assert lines[0] == "running fn"
    assert set(lines[1:]) == {"still running fn, after 0 s of at most 0.1 s"}


def test_a_result_and_an_error_of_the_work_are_handed_on(often):
    def fail():
        raise TimeoutError("of the work")

    def late():
        time.sleep(0.1)
        return 3

    assert wait_for(late, "a step", 60.0) == 3
    with pytest.raises(TimeoutError, match="of the work"):
        wait_for(fail, "a step", 60.0)
