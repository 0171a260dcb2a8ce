# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Limits of time for the steps of an export: a trace, a compilation, a run.

Python code that goes on is interrupted in its own thread, since JAX's options and the caller's
contexts belong to that thread. Compiled code and the compiler cannot be interrupted. Each of their
steps has a thread of its own, and the caller waits for a bounded time. The thread is a daemon, so
it ends with the process.

Each step is logged at level DEBUG, and one that takes long at INFO.
"""

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from dovetail_serve.exporting.frames import place_of

Result = TypeVar("Result")

# Time that a step may take, in seconds, unless the caller says otherwise.
LIMIT_S = 60.0
# Seconds between two lines of progress.
_INTERVAL_S = 10.0
# Between two interruptions: Python code may catch one, and a callback of the garbage collector, in
# which one happens to be raised, prints it.
_AGAIN_S = 1.0

_log = logging.getLogger(__name__)


class OvertimeError(Exception):
    """Work goes on after its time."""


class _Interruption(BaseException):
    """Ends Python code. No Exception: a function may catch those."""


def wait_for(work: Callable[[], Result], step: str, limit_s: float) -> Result:
    """Returns the result of `work`, which runs in a thread of its own.

    Args:
        work: Compiled code, or the compiler.
        step: Its name, in a sentence such as "running ...".
        limit_s: Time that it may take, in seconds.

    Raises:
        OvertimeError: It goes on.
    """
    pending: Future[Result] = Future()

    def run() -> None:
        try:
            pending.set_result(work())
        except BaseException as error:  # handed to the thread that waits
            pending.set_exception(error)

    _log.debug("%s", step)
    threading.Thread(target=run, daemon=True).start()
    start = time.monotonic()
    while not pending.done():
        left_s = start + limit_s - time.monotonic()
        if left_s <= 0:
            raise OvertimeError(step)
        wait([pending], timeout=min(left_s, _INTERVAL_S))
        if left_s > _INTERVAL_S and not pending.done():
            _goes_on(step, start, limit_s)
    return pending.result()


def limited(work: Callable[[], Result], step: str, limit_s: float) -> Result:
    """Returns the result of `work`, which runs in this thread and is ended if it takes too long.

    Args:
        work: Python code.
        step: Its name, in a sentence such as "tracing ...".
        limit_s: Time that it may take, in seconds.

    Raises:
        ValueError: It was ended. The message names the line that was running.
    """
    _log.debug("%s", step)
    watch = _Watch(step, limit_s, threading.get_ident())
    try:
        try:
            watch.start()
            return work()
        finally:
            watch.stop()
    except (_Interruption, SystemError) as error:
        watch.stop()  # this one may have come in its first line
        # Compiled code that does not expect an exception of its callback makes it the cause.
        if not isinstance(error, _Interruption) and not isinstance(error.__cause__, _Interruption):
            raise
        raise ValueError(
            f"fn must be traced within {limit_s:g} s, got no end of {step} at "
            f"{place_of(error)}; end its Python loops, write long ones with "
            "jax.lax.fori_loop or jax.lax.scan, or give it more time with "
            f"limit_s={10 * limit_s:g}"
        ).with_traceback(error.__traceback__) from None


class _Watch:
    """Interrupts a thread after a time."""

    def __init__(self, step: str, limit_s: float, thread: int) -> None:
        self._step, self._limit_s, self._thread_id = step, limit_s, thread
        self._lock, self._done, self._sent = threading.Lock(), threading.Event(), False

    def start(self) -> None:
        """Starts the watch."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Ends the watch: no interruption is raised after it."""
        with self._lock:
            self._done.set()
        # One that was sent is raised here. To take it back would leave CPython's flag for it set,
        # with which a thread that is profiled never goes on.
        for _ in range(100 if self._sent else 0):
            pass

    def _run(self) -> None:
        start = time.monotonic()
        while (left_s := start + self._limit_s - time.monotonic()) > 0:
            if self._done.wait(min(left_s, _INTERVAL_S)):
                return
            _goes_on(self._step, start, self._limit_s)
        while not self._done.wait(0):
            with self._lock:
                if not self._done.is_set():
                    self._sent = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(self._thread_id), ctypes.py_object(_Interruption)
                    )
            self._done.wait(_AGAIN_S)


def _goes_on(step: str, start: float, limit_s: float) -> None:
    elapsed_s = time.monotonic() - start
    _log.info("still %s, after %.0f s of at most %g s", step, elapsed_s, limit_s)
