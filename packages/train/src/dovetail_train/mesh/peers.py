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

import atexit
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

_log = logging.getLogger(__name__)
_PAUSE_S = 1.0  # between questions: a call of the coordinator by each process
_END_S = 300.0  # for the others to end: JAX's own limit


class LostProcessError(RuntimeError):
    """Interrupts the main thread."""


def explained(said: str) -> str:
    """Returns the message for a lost process, with the words of JAX about it."""
    return (
        f"all {jax.process_count()} processes of a run must stay until its end, got a lost process "
        f"({said}); its own output may say why; start all processes again with the same arguments: "
        f"the run resumes from its last save"
    )


class Watch:
    """The thread that asks for the live processes, from `start` to the end of the program.

    All processes of the run need one, since each answer waits for the question of every live
    process.

    Args:
        heartbeat_s: Seconds that process 0 waits for the others at the end, after a failure.
    """

    def __init__(self, *, heartbeat_s: float) -> None:
        self._thread = threading.Thread(target=self._ask, name="dovetail-peers", daemon=True)
        self._ended = threading.Event()
        self._heartbeat_s = heartbeat_s
        self._armed = self._failed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread. Call it after `jax.distributed.initialize`."""
        atexit.register(self._end)  # before JAX's shutdown, which was registered earlier
        self._thread.start()

    def join(self) -> None:
        """Waits for the thread. Call it after JAX's shutdown, which ends its question."""
        if self._thread.ident is not None:
            self._thread.join(timeout=_END_S)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raises `LostProcessError` in the block, on the main thread, once a process is lost."""
        if self._armed or threading.current_thread() is not threading.main_thread():
            yield
            return
        # Ignored unless a program handles it, and sent by the system for urgent data on sockets
        # alone. Windows has no such signal, and no several processes of JAX.
        before = signal.signal(signal.SIGURG, self._raise)
        self._armed = True
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            with self._lock:  # the thread may be about to send
                self._armed = False
            signal.signal(signal.SIGURG, signal.SIG_DFL if before is None else before)

    def _end(self) -> None:
        """Ends the thread. Process 0 first waits for the end of all others.

        The coordinator ends with process 0. JAX aborts a process that still needs it, and has no
        barrier at the end for recoverable tasks.
        """
        self._ended.set()
        self._thread.join(timeout=self._heartbeat_s if self._failed else _END_S)

    def _ask(self) -> None:
        devices, own = jax.devices(), jax.local_device_count()
        while not self._ended.wait(_PAUSE_S):
            live = _live(devices)
            if live == 0:
                return
            if live < len(devices):
                self._interrupt_until_end()
        while jax.process_index() == 0 and _live(devices) > own:
            pass  # an answer comes as soon as the others have asked or ended

    def _interrupt_until_end(self) -> None:
        """Interrupts the main thread, more than once: a handler may swallow an exception.

        A call of a C library is not interrupted: Gloo waits 30 s for a lost process that it has not
        connected to. Threads of a save that waits for the lost process would keep the program from
        ending, after the main thread has, for ten minutes or for ever. Both have `heartbeat_s`.
        """
        inside_s = ended_s = 0.0
        while not self._ended.wait(_PAUSE_S):
            inside_s = inside_s + _PAUSE_S if self._interrupt() else 0.0
            ended_s += 0.0 if threading.main_thread().is_alive() else _PAUSE_S
            if inside_s > self._heartbeat_s:
                self._leave(explained("it sends no heartbeats, and the main thread waits for it"))
            if self._failed and ended_s > self._heartbeat_s / 2:
                self._leave("threads that wait for the lost process are left behind")

    def _leave(self, reason: str) -> None:
        sys.stdout.flush()
        _log.error("%s", reason)
        if threading.main_thread().is_alive():
            faulthandler.dump_traceback(all_threads=False)
        sys.stderr.flush()
        os._exit(1)

    def _interrupt(self) -> bool:
        """Returns whether the main thread was in the block."""
        main = threading.main_thread().ident
        assert main is not None
        with self._lock:
            if self._armed:
                signal.pthread_kill(main, signal.SIGURG)
            return self._armed

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise LostProcessError("it sends no heartbeats, or has ended")


def _live(devices: list[Any]) -> int:
    """Returns the number of devices of live processes; 0 after the end of the connection."""
    try:
        with multihost_utils.live_devices(devices) as live:
            return len(live)
    except multihost_utils.ProcessFailureError as error:
        return len(devices) - len(error.failed_devices)
    except Exception:
        return 0
