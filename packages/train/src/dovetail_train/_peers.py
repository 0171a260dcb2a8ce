# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A watch over the other processes of a run, in a thread.

A process that waits for a lost one may wait for ever. XLA's CPU backend fails the collective of one
device and leaves the other devices waiting for it, and JAX's coordinator tells nobody if its tasks
are recoverable. If they are not, it ends every survivor by a C++ abort, without a Python error.

So each process asks the coordinator for the live processes, and interrupts its main thread if one
is missing. The question is `multihost_utils.live_devices`. It is public and may still change. It
returns when all live processes have asked: a lost one is known after its missing heartbeats. Tried
on jax 0.10.2 and 0.12.0.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

_PAUSE_S = 1.0  # between questions: a call of the coordinator by each process
# Ignored unless a program handles it, and sent by the system for urgent data on sockets alone.
_SIGNAL = signal.SIGURG


class LostProcessError(RuntimeError):
    """Interrupts the main thread."""


class Watch:
    """The thread that asks for the live processes, from `start` to the end of the program.

    All processes of the run need one, since each answer waits for the question of every live
    process.
    """

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._ask, name="dovetail-peers", daemon=True)
        self._ended = threading.Event()
        self._armed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread. Call it after `jax.distributed.initialize`."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread. Call it after `jax.distributed.shutdown`, which ends its question."""
        self._ended.set()
        self._thread.join(timeout=10)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raises `LostProcessError` in the block, on the main thread, once a process is lost."""
        if self._armed or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(_SIGNAL, self._raise)
        self._armed = True
        try:
            yield
        finally:
            with self._lock:  # the thread may be about to send
                self._armed = False
            signal.signal(_SIGNAL, before)

    def _ask(self) -> None:
        devices = jax.devices()
        while not self._ended.wait(_PAUSE_S):
            try:
                with multihost_utils.live_devices(devices) as live:
                    missing = len(live) < len(devices)
            except multihost_utils.ProcessFailureError:
                missing = True
            except Exception:  # the connection has ended, as at the end of a program
                return
            if missing:
                self._interrupt()
                return

    def _interrupt(self) -> None:
        """Interrupts the main thread until it has left the block: a handler may swallow one."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._ended.wait(_PAUSE_S):
            with self._lock:
                if self._armed:
                    signal.pthread_kill(main, _SIGNAL)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise LostProcessError("the coordinator has no more heartbeats of it")
