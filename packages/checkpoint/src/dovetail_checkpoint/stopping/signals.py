# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to stop: signals, noticed at once and agreed on by all processes.

Python runs signal handlers between bytecodes of the main thread. A handler alone notices nothing
while that thread compiles or waits for a device, perhaps for minutes. The C half of the handler
also writes the signal's number to a file descriptor (`signal.set_wakeup_fd`); a thread waits on it
and notes the request in any case.

This thread also runs C handlers installed earlier (actions.py). One of them belongs to jax's
preemption service (preemption.py), and the service is told of every signal, not of SIGTERM alone.
"""

import logging
import math
import os
import signal
import socket
import threading
import time
from types import FrameType, TracebackType
from typing import Any

import jax

from dovetail_checkpoint.proof import agree
from dovetail_checkpoint.stopping import actions, preemption

_logger = logging.getLogger(__name__)
_NEVER_CAUGHT = frozenset({signal.SIGKILL, signal.SIGSTOP})


def on_signal(*signals: signal.Signals, grace_s: float = 30.0) -> "StopRequest":
    """Returns a context manager that turns `signals` into a request to stop.

    Enter it after `jax.distributed.initialize`, which installs a handler of its own. Earlier
    handlers, including those of C libraries, still run and are installed again on exit. A second
    SIGINT raises KeyboardInterrupt in the main thread, as users expect.

    Args:
        signals: The signals, such as `signal.SIGTERM`.
        grace_s: Seconds from the first signal until the sender kills the process.

    Raises:
        ValueError: No signal is given, one cannot be caught, or `grace_s` is negative.

    Example:

        >>> import signal
        >>> from dovetail_checkpoint import on_signal
        >>> with on_signal(signal.SIGINT, signal.SIGTERM) as stop:
        ...     for step in range(10):
        ...         if stop.poll(step):
        ...             break
    """
    if not signals:
        raise ValueError(
            "on_signal needs at least one signal, got none; "
            "on_signal(signal.SIGINT, signal.SIGTERM)"
        )
    if refused := _NEVER_CAUGHT & set(signals):
        raise ValueError(
            f"the signals must be ones that a process may catch, got {min(refused).name}; "
            "use signal.SIGTERM"
        )
    if not grace_s >= 0:
        raise ValueError(f"grace_s must be 0 or more seconds, got grace_s={grace_s}; use 30.0")
    return StopRequest(frozenset(signals), grace_s)


class StopRequest:
    """A request to stop, made by a signal. Created by `on_signal`."""

    def __init__(self, signals: frozenset[signal.Signals], grace_s: float) -> None:
        self._signals = signals
        self._grace_s = grace_s
        self._first_s = math.inf
        self._heard = 0  # SIGINTs that the thread saw
        self._handled = 0  # SIGINTs that Python's handler saw: several during one C call are one
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_in_c: dict[signal.Signals, actions.Action] = {}
        self._previous_wakeup = -1
        self._address = 0  # of Python's C handler, the same for all signals
        self._changing = threading.Lock()  # held while handlers are put in or taken out
        self._listens = False  # whether jax's service hears of a request at this process
        self._by_service = False  # whether it does at all processes
        self._agreed = False

    @property
    def requested(self) -> bool:
        """Whether this process has received a signal."""
        return self._first_s < math.inf

    @property
    def remaining_s(self) -> float:
        """Seconds left of `grace_s`; all of it before the first signal, never below 0."""
        return self._grace_s - max(0.0, min(self._grace_s, time.monotonic() - self._first_s))

    def poll(self, step: int) -> bool:
        """Whether any process has received a signal: the same answer on all, for the same `step`.

        Several processes must poll equally often. With jax's preemption service, on by default, a
        call costs a microsecond and the answer comes up to about a second after the signal; do not
        call `reached_preemption_sync_point` as well. Without the service, or without SIGTERM among
        the signals, each call is a collective and waits for the running step: 1.6 ms for two
        processes on one CPU.

        Raises:
            RuntimeError: The processes ask about different steps, or another handler replaced this
                one.
        """
        self._check_installed()
        if not self._agreed:
            self._agreed = self._asked(step)
        return self._agreed

    def _asked(self, step: int) -> bool:
        if jax.process_count() == 1:
            return self.requested
        reached = self._by_service and preemption.reached()
        if self._by_service and not reached:
            return False
        answers = agree.gather([step, self.requested or reached, self._listens])
        if len({asked for asked, _, _ in answers}) > 1:
            raise RuntimeError(
                "all processes must poll the same step, got "
                f"steps={[asked for asked, _, _ in answers]}; call poll once in each training step"
            )
        self._by_service = all(listens for _, _, listens in answers)
        return any(requested for _, requested, _ in answers)

    def _check_installed(self) -> None:
        with self._changing:  # else the thread may just be running an old handler
            present = {number: actions.current(number).address for number in self._previous}
        for number, address in present.items():
            if address != self._address:
                raise RuntimeError(
                    f"the handler of {number.name} must stay while on_signal is entered, got one "
                    "of another library in its place; enter on_signal after that library, and "
                    "after jax.distributed.initialize"
                )

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
            before = actions.current(number)
            self._previous[number] = signal.signal(number, self._handle)
            self._address = actions.current(number).address
            if before.is_handler and before.address != self._address:
                self._previous_in_c[number] = before
        terminate = self._previous_in_c.get(signal.SIGTERM)
        self._listens = terminate is not None and preemption.listens(terminate)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changing:
            for number, previous in self._previous.items():
                # None: a C handler from before Python, which is in _previous_in_c.
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
            for number, action in self._previous_in_c.items():
                actions.install(number, action)
            self._previous.clear()
        signal.set_wakeup_fd(self._previous_wakeup)
        self._writer.close()  # ends the thread
        self._thread.join()
        self._reader.close()

    def _listen(self) -> None:
        """Notes the number of each signal, on a thread of its own, as the C handler writes it."""
        while numbers := self._reader.recv(16):
            self._heard += numbers.count(signal.SIGINT)
            ours = {number for number in self._signals if number in numbers}
            if ours:
                self._note()
            self._deliver(ours | {signal.SIGTERM} if ours and self._listens else ours)
            if self._previous_wakeup >= 0:
                self._forward(numbers)

    def _deliver(self, numbers: set[signal.Signals]) -> None:
        """Runs the earlier C handlers, even while Python cannot run its own."""
        with self._changing:
            for number in numbers & self._previous_in_c.keys():
                actions.deliver(number, self._previous_in_c[number])

    def _forward(self, numbers: bytes) -> None:
        """Forwards the numbers to the earlier listener: an event loop or an outer on_signal."""
        try:
            os.write(self._previous_wakeup, numbers)
        except OSError as error:  # full or closed; this thread must go on
            _logger.warning("the wakeup descriptor of before cannot be written: %s", error)

    def _note(self) -> None:
        self._first_s = min(self._first_s, time.monotonic())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs on the main thread, as soon as Python may."""
        self._note()
        previous = self._previous.get(signal.Signals(number))
        if number == signal.SIGINT:
            self._handled += 1
        is_default = previous is signal.default_int_handler
        if callable(previous) and (not is_default or max(self._heard, self._handled) > 1):
            previous(number, frame)
