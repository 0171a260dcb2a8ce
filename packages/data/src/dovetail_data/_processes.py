# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that do one kind of work, given to each of them once."""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any


class Processes:
    """`workers` spawned processes that call `work`, which must pickle.

    scratch: a directory that goes when this process is killed.
    """

    def __init__(
        self, work: Callable[[Any], Any], workers: int, *, scratch: str | None = None
    ) -> None:
        self._executor = ProcessPoolExecutor(
            workers,
            # Not fork: a forked child inherits the locks of the tokenizer's threads and hangs.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(work, scratch),
        )

    def submit(self, argument: Any) -> Future[Any]:
        return self._executor.submit(_call, argument)

    def close(self, *, wait: bool) -> None:
        """Ends them when each has done what it is at; wait: returns only then."""
        self._executor.shutdown(wait=wait, cancel_futures=True)


_work: Callable[[Any], Any] | None = None  # in a worker: pickled once per process, not per call


def _start(work: Callable[[Any], Any], scratch: str | None) -> None:
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_die_with_parent, args=(scratch,), daemon=True).start()


def _die_with_parent(scratch: str | None) -> None:
    # A parent that was killed cannot end its workers; they would wait for work for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _call(argument: Any) -> Any:
    assert _work is not None
    return _work(argument)
