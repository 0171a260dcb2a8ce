# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A request to stop, from a signal, seen at once and agreed by all processes.

Python runs its signal handlers between bytecodes of the main thread, so a handler alone sees
nothing while that thread compiles or waits for a device, which may take minutes. The C half of the
handler also writes the signal's number to a file descriptor (`signal.set_wakeup_fd`); a thread
waits on it, so the request is noted whatever the main thread does.

Handlers in C that were there before (actions.py) are run by that thread too. One of them belongs
to jax's preemption service (preemption.py), which is told of every signal and not of SIGTERM alone.
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

from dovetail_checkpoint import actions, agree, preemption

_logger = logging.getLogger(__name__)
_NEVER_CAUGHT = frozenset({signal.SIGKILL, signal.SIGSTOP})


def on_signal(*signals: signal.Signals, grace_s: float = 30.0) -> "StopRequest":
    """A context manager that turns `signals` into a request to stop.

    grace_s: how long the sender waits before it kills, counted from the first signal.

    Enter it after `jax.distributed.initialize`, which installs a handler of its own. The handlers
    that were installed before still run, those of C libraries too, and are installed again on
    exit. A second SIGINT raises KeyboardInterrupt in the main thread, as users expect.

    >>> with on_signal(signal.SIGINT, signal.SIGTERM) as stop:
    ...     for step in range(10):
    ...         if stop.poll(step): break

    Raises ValueError without signals, with one that cannot be caught or with a negative grace_s.
    """
    if not signals:
        raise ValueError(
            "on_signal needs at least one signal, got none; "
            "on_signal(signal.SIGINT, signal.SIGTERM)"
        )
    if found := _NEVER_CAUGHT & set(signals):
        raise ValueError(
            f"the signals must be ones that a process may catch, got {min(found).name}; "
            "use signal.SIGTERM"
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
        self._previous_in_c: dict[signal.Signals, actions.Action] = {}
        self._previous_wakeup = -1
        self._address = 0  # of Python's C handler, the same for all signals
        self._changing = threading.Lock()  # held while handlers are put in or taken out
        self._listens = False  # whether jax's service hears of a request at this process
        self._by_service = False  # whether it does at all processes
        self._agreed = False

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

        Several processes poll equally often. Where jax's preemption service runs, as it does by
        default, a call costs a microsecond and the answer comes up to about a second after the
        signal; do not call `reached_preemption_sync_point` beside it. Without the service, and
        where SIGTERM is not among the signals, each call is a collective that waits for the step
        under way: 1.6 ms for two processes on one CPU.

        Raises RuntimeError if the processes ask about different steps, or if another handler took
        the place of this one.
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
        """Runs on a thread of its own: notes each signal's number as the C handler writes it."""
        while numbers := self._reader.recv(16):
            self._heard += numbers.count(signal.SIGINT)
            ours = {number for number in self._signals if number in numbers}
            if ours:
                self._note()
            self._deliver(ours | {signal.SIGTERM} if ours and self._listens else ours)
            if self._previous_wakeup >= 0:
                self._forward(numbers)

    def _deliver(self, numbers: set[signal.Signals]) -> None:
        """Runs the C handlers that were there before, also while Python cannot run its own."""
        with self._changing:
            for number in numbers & self._previous_in_c.keys():
                actions.deliver(number, self._previous_in_c[number])

    def _forward(self, numbers: bytes) -> None:
        """Whoever listened before (an event loop, an outer on_signal) still learns of it."""
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
