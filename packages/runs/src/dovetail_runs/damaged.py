# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The error for unreadable runs."""


class DamagedRun(ValueError):
    """A damaged file of a run, or one of another version."""

    exit_code = 3  # of the command: damaged data
