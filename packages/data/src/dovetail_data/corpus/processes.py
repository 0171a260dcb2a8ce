# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Worker processes for one function, pickled to each of them once."""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any


class Processes:
    """A pool of spawned processes that call one function.

    Args:
        work: The function; it must pickle.
        workers: Number of processes.
        scratch: Directory to be deleted when this process is killed.
    """

    def __init__(
        self, work: Callable[[Any], Any], workers: int, *, scratch: str | None = None
    ) -> None:
        # Not fork: a forked child inherits the locks of the tokenizer's threads and hangs.
        context = multiprocessing.get_context("spawn")
        closed, self._open = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start, initargs=(work, closed, scratch)
        )

    def submit(self, argument: Any) -> Future[Any]:
        return self._executor.submit(_call, argument)

    def close(self, *, wait: bool) -> None:
        """Ends the processes at once, in the middle of their work.

        With `wait`, returns when they have ended.
        """
        self._open.close()
        self._executor.shutdown(wait=wait, cancel_futures=True)


_work: Callable[[Any], Any] | None = None  # in a worker: pickled once per process, not per call


def _start(work: Callable[[Any], Any], closed: Connection, scratch: str | None) -> None:
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end, args=(closed, scratch), daemon=True).start()


def _end(closed: Connection, scratch: str | None) -> None:
    # A killed parent cannot end its workers; they would wait for work for ever. A parent that
    # closes them would wait for their current task, and for as much again in the queue.
    parent = multiprocessing.parent_process()
    assert parent is not None
    if parent.sentinel in wait([parent.sentinel, closed]) and scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _call(argument: Any) -> Any:
    assert _work is not None
    return _work(argument)
