# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Completion times of steps, taken while the main thread does something else.

The main thread reads results late and in bunches: after it was busy for five seconds, several
results are ready at once, and the distances between its reads say nothing about the devices. A
thread of its own blocks on each result in turn and takes the time.

That thread needs the interpreter lock. While another thread holds it (at most 5 ms in Python code,
longer in an extension), a time is late: one step seems longer and the next shorter. Results that
were complete before the thread looked have no time of their own; they share the one taken.
"""

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, runtime_checkable

_log = logging.getLogger(__name__)
# A step that is not complete by then may never be: the other processes of its mesh are gone.
_CLOSE_S = 5.0


@runtime_checkable
class Pending(Protocol):
    """A result on its way, such as a `jax.Array`."""

    def is_ready(self) -> bool: ...
    def block_until_ready(self) -> Any: ...


class Completion(NamedTuple):
    """The time of a completed result.

    Attributes:
        at_s: Time at which it was complete, of the clock of `Completions`.
        left: Results with this time, from this one on: 1 unless several were complete at once.
    """

    at_s: float
    left: int


class Completions:
    """Completion times in the order of dispatch, taken by a thread from the first `add` on.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._added, self._closed = 0, False
        self._newest = 0, float("-inf")  # number of completed results, time of the last
        self._pending: SimpleQueue[Pending | None] = SimpleQueue()
        self._taken: SimpleQueue[Completion] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, result: Pending) -> None:
        """Announces a dispatched result."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="dovetail-completions", daemon=True
            )
            self._thread.start()
        self._added += 1
        self._pending.put(result)

    def has_next(self) -> bool:
        """Tests whether `next` would return at once."""
        return not self._taken.empty()

    def next(self) -> Completion:
        """Returns the completion of the oldest added result not yet returned; waits for it."""
        return self._taken.get()

    def idle_since(self) -> float | None:
        """Returns the time since when no added result is pending; None while one is."""
        count, at_s = self._newest
        return at_s if count == self._added else None

    def close(self, *, wait: bool = True) -> None:
        """Ends the thread. Waits for the result that it is blocked on, 5 s at most; no other.

        A thread that is left behind ends with its result, or with the process.

        Args:
            wait: False leaves the thread behind at once.
        """
        self._closed = True
        if self._thread is not None:
            self._pending.put(None)
            if wait:
                self._thread.join(_CLOSE_S)
            if wait and self._thread.is_alive():
                _log.warning("a step is still on its way after %s s; its result is lost", _CLOSE_S)
            self._thread = None

    def _run(self) -> None:
        count, result = 0, self._pending.get()
        while result is not None and not self._closed:
            _wait(result)
            together, result = 1, None
            while not self._pending.empty():  # no other thread takes from it
                result = self._pending.get()
                if result is None or not _is_complete(result):
                    break
                together, result = together + 1, None
            count, at_s = count + together, self._now()
            self._newest = count, at_s
            for left in range(together, 0, -1):
                self._taken.put(Completion(at_s, left))
            if result is None and not self._closed:
                result = self._pending.get()


# A failed step is complete. Reading its metrics raises its error, in the main thread.


def _wait(result: Pending) -> None:
    try:
        result.block_until_ready()
    except Exception:
        return


def _is_complete(result: Pending) -> bool:
    try:
        return result.is_ready()
    except Exception:
        return True
