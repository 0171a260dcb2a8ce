# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A request to stop, from a signal, seen at once and agreed by all processes.

Python runs its signal handlers between bytecodes of the main thread, so a handler alone sees
nothing while that thread compiles or waits for a device, which may take minutes. The C half of the
handler also writes the signal's number to a file descriptor (`signal.set_wakeup_fd`); a thread
waits on it, so the request is noted whatever the main thread does.
"""

import math
import os
import signal
import socket
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from dovetail_checkpoint import agree


def on_signal(*signals: signal.Signals, grace_s: float = 30.0) -> "StopRequest":
    """A context manager that turns `signals` into a request to stop.

    grace_s: how long the sender waits before it kills, counted from the first signal.

    The handlers that were installed before still run, and are installed again on exit. A second
    SIGINT raises KeyboardInterrupt in the main thread, as users expect.

    >>> with on_signal(signal.SIGINT, signal.SIGTERM) as stop:
    ...     for step in range(10):
    ...         if stop.poll(step): break

    Raises ValueError without signals or with a negative grace_s.
    """
    if not signals:
        raise ValueError(
            "on_signal needs at least one signal, got none; "
            "on_signal(signal.SIGINT, signal.SIGTERM)"
        )
    if not grace_s >= 0:
        raise ValueError(f"grace_s must be 0 or more seconds, got grace_s={grace_s}; use 30.0")
    return StopRequest(frozenset(signals), grace_s)


class StopRequest:
    """Whether, and since when, the process was asked to stop. Made by `on_signal`."""

    def __init__(self, signals: frozenset[signal.Signals], grace_s: float) -> None:
        self._signals = signals
        self._grace_s = grace_s
        self._first_s = math.inf
        self._heard = 0  # SIGINTs that the thread saw
        self._handled = 0  # SIGINTs that Python's handler saw: several during one C call are one
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_wakeup = -1

    @property
    def requested(self) -> bool:
        """Whether a signal arrived at this process."""
        return self._first_s < math.inf

    @property
    def remaining_s(self) -> float:
        """The part of `grace_s` that is left; all of it before the first signal, never below 0."""
        return self._grace_s - max(0.0, min(self._grace_s, time.monotonic() - self._first_s))

    def poll(self, step: int) -> bool:
        """Whether any process was asked to stop: the same answer on all, for the same `step`.

        With several processes this is a collective and waits for the step that is under way.
        Raises RuntimeError if the processes ask about different steps.
        """
        answers = agree.gather([step, self.requested])
        if len({asked for asked, _ in answers}) > 1:
            raise RuntimeError(
                "all processes must poll the same step, got "
                f"steps={[asked for asked, _ in answers]}; call poll once in each training step"
            )
        return any(requested for _, requested in answers)

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "on_signal must be entered on the main thread, which alone may handle signals, "
                f"got thread={threading.current_thread().name!r}; enter it there and pass it on"
            )
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="dovetail-signals", daemon=True)
        self._thread.start()
        self._previous_wakeup = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            # None: a handler that was not installed from Python and cannot be given back.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._writer.close()  # ends the thread
        self._thread.join()
        self._reader.close()

    def _listen(self) -> None:
        """Runs on a thread of its own: notes each signal's number as the C handler writes it."""
        while numbers := self._reader.recv(16):
            self._heard += numbers.count(signal.SIGINT)
            if self._signals & set(numbers):
                self._note()
            if self._previous_wakeup >= 0:
                # Whoever listened before (an event loop, an outer on_signal) still learns of it.
                os.write(self._previous_wakeup, numbers)

    def _note(self) -> None:
        self._first_s = min(self._first_s, time.monotonic())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs on the main thread, as soon as Python may."""
        self._note()
        previous = self._previous[signal.Signals(number)]
        if number == signal.SIGINT:
            self._handled += 1
        is_default = previous is signal.default_int_handler
        if callable(previous) and (not is_default or max(self._heard, self._handled) > 1):
            previous(number, frame)
