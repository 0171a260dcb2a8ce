# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rewind of a run that is pending, as its settings store it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rewind:
    """Steps to go back to and to leave out; see `rewinding`.

    Attributes:
        asked: The step that was asked for, or None.
        to: Step of the checkpoint to go on from.
        leave_out: Steps [first, end) to leave out, as they were asked for.
    """

    asked: int | None
    to: int
    leave_out: tuple[tuple[int, int], ...]
