# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Output of ranks on the driver's stderr, in a thread of its own.

A reader of stderr may stand still, such as a pager. The threads of the connections must not wait
for it: their hosts would count as silent. Beyond a limit, lines are dropped and counted.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading

LIMIT = 10_000  # blocks of lines in memory


class Printer:
    """Writes text to stderr in the order of the calls.

    Args:
        limit: Texts in memory at most. Later ones are dropped, with a line to say so.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._texts: queue.Queue[str | threading.Event] = queue.Queue(limit)
        self._dropped = 0
        threading.Thread(target=self._write, daemon=True, name="dovetail-print").start()

    def put(self, text: str) -> None:
        """Queues a text. Returns at once."""
        try:
            self._texts.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def flush(self, timeout_s: float = 1.0) -> None:
        """Waits until all texts so far are written, but no longer than `timeout_s`."""
        written = threading.Event()
        try:
            self._texts.put(written, timeout=timeout_s)
        except queue.Full:
            return
        written.wait(timeout_s)

    def _write(self) -> None:
        while True:
            text = self._texts.get()
            if isinstance(text, threading.Event):
                text.set()
                continue
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text += f"[driver] {dropped} blocks of output were dropped: stderr is too slow\n"
            with contextlib.suppress(OSError, ValueError):  # stderr is closed; the job goes on
                sys.stderr.write(text)
