# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The writer of a root in this process: its lock, its background thread and its running save.

Ownership is a property of a process, so the writers are kept by root for the whole process: several
stores in one root take turns instead of refusing each other. The process commits what still runs
when the script ends. A forked child begins with no writer; the lock stays with its parent.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from dovetail_checkpoint import _compat
from dovetail_checkpoint.run.exiting import before_exit
from dovetail_checkpoint.run.lock import WriterLock
from dovetail_checkpoint.run.steps import step_directory

_logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Saving:
    """A save in the background.

    Attributes:
        step: Number of the step.
        done: Ends with the save.
        limit_s: Seconds that the end of the script waits for it.
        process: Number of the saving process: a forked child inherits no threads.
        is_known: Whether the caller has its outcome, so nothing is left to say.
    """

    step: int
    done: Future[None]
    limit_s: float
    process: int
    is_known: bool = False


class Writer:
    """All saves of this process in one root."""

    def __init__(self, root: Path) -> None:
        self.lock = WriterLock(root)
        self._root = root
        # One thread that stays: to start one while Orbax is busy in others takes 10 ms.
        self._background = ThreadPoolExecutor(1, thread_name_prefix="dovetail-save")
        self._users: WeakSet[Any] = WeakSet()
        self._saving: Saving | None = None

    def enter(self, user: Any) -> None:
        """Adds a store, and waits for a save of another one. Its own it has waited for.

        Raises:
            RuntimeError: The script has ended.
        """
        if _ended.is_set():
            raise RuntimeError(
                f"a step must be saved before the main thread ends, got a save to {self._root} "
                "after it; save in the script, or wait there for the thread that saves"
            )
        self._users.add(user)
        if self._saving is not None:
            wait([self._saving.done])

    def begin(self, step: int, work: Callable[[], None], *, limit_s: float) -> Saving:
        """Runs `work` in the background.

        Args:
            step: Number of the step.
            work: The rest of the save.
            limit_s: Seconds that the end of the script waits for it.
        """
        done = self._background.submit(work)
        self._saving = Saving(step=step, done=done, limit_s=limit_s, process=os.getpid())
        return self._saving

    def leave(self, user: Any) -> None:
        """Removes a store. The last one gives up the lock."""
        self._users.discard(user)
        if not self._users:
            self._close()

    def settle(self) -> None:
        """Waits for the running save, says in one line what is lost, and gives up the lock."""
        saving = self._saving
        if saving is not None and not saving.is_known:
            wait([saving.done], timeout=saving.limit_s)
            if not saving.done.done():
                reason = f"it took longer than timeout_s={saving.limit_s:g}"
            else:
                error = saving.done.exception()
                reason = error and repr(error)
            if reason:
                committed = step_directory(self._root, saving.step).is_dir()
                state = "lacks its checksums" if committed else "is lost"
                _logger.error(
                    "%s: the script ended and step %d %s: %s",
                    *(self._root, saving.step, state, reason),
                )
        self._close()

    def _close(self) -> None:
        self.lock.release()
        self._background.shutdown(wait=False)
        _writers.pop(self._root, None)


def writer_of(root: Path) -> Writer:
    """Returns the writer of this process for `root`."""
    _settle_before_exit()
    root = root.resolve()
    return _writers.get(root) or _writers.setdefault(root, Writer(root))


@functools.cache
def _settle_before_exit() -> None:
    before_exit(_settle)
    os.register_at_fork(after_in_child=_writers.clear)


def _settle() -> None:
    _compat.finish_without_new_threads()
    _ended.set()
    for writer in list(_writers.values()):
        writer.settle()


_writers: dict[Path, Writer] = {}
_ended = threading.Event()
