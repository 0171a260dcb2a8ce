# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How far long work is: the one hook that commands need to show it. The library prints nothing."""

from collections.abc import Callable

# Called with the bytes that are done and the bytes in all.
Progress = Callable[[int, int], None]


def counter(progress: Progress | None, *, total_bytes: int) -> Callable[[int], None]:
    """A function that takes the bytes of each part that is done and tells the sum to `progress`.

    That there is something to do is told at once.
    """
    done_bytes = 0

    def add(part_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += part_bytes
        if progress is not None and total_bytes:
            progress(done_bytes, total_bytes)

    add(0)
    return add
