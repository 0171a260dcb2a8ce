# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The errors of a job."""

from __future__ import annotations

import functools
from typing import Any


class JobError(RuntimeError):
    """A job has ended without a result. The message says why, and has the last report."""


class RankError(JobError):
    """The user's function raised, on the rank that the message names, with its traceback.

    `__cause__` is the exception itself, if it could be pickled.

    Args:
        message: The message, with the traceback of the rank.
        rank: The rank that raised first.
        generation: The generation in which it did.

    Attributes:
        rank: The rank that raised first.
        generation: The generation in which it did.
    """

    def __init__(self, message: str, *, rank: int, generation: int):
        super().__init__(message)
        self.rank, self.generation = rank, generation

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is rebuilt from its positional arguments alone.
        make = functools.partial(RankError, rank=self.rank, generation=self.generation)
        return make, self.args


class StallError(JobError):
    """The job stood still more often than its budget allows."""


class HostsError(JobError):
    """Too few healthy hosts remained for longer than `Elastic.wait_s`."""


class BuildError(RuntimeError):
    """A program could not be built for a target. The message has the traceback."""
