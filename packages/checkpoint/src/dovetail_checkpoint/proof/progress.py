# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Progress of long work, for a command to show. The library prints nothing."""

from collections.abc import Callable

# Called with the bytes that are done and the bytes in all.
Progress = Callable[[int, int], None]


def counter(progress: Progress | None, *, total_bytes: int) -> Callable[[int], None]:
    """Returns a function that adds up bytes and reports the sum to `progress`.

    The total is reported at once, with 0 bytes done.
    """
    done_bytes = 0

    def add(part_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += part_bytes
        if progress is not None and total_bytes:
            progress(done_bytes, total_bytes)

    add(0)
    return add
