# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A profile: where time and memory went, asked of a trace."""

import functools
from typing import Literal

from dovetail_profile.table import Table
from dovetail_profile.tables import ops
from dovetail_profile.trace.recording import Recording

By = Literal["op", "source", "scope", "category"]


class Profile:
    """The answers to a trace. Each is computed when it is first asked for, and kept.

    Attributes:
        hosts: Names of the hosts that were traced.
        warnings: What was missing in the trace, and what to do about it.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.hosts = recording.hosts

    @functools.lru_cache  # noqa: B019 -- see the class
    def ops(self, by: By = "op") -> Table[ops.OpRow]:
        """See `ops.ops`."""
        return ops.ops(self._recording, by)
