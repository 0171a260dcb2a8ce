# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The error for a run that cannot be read."""


class DamagedRun(ValueError):
    """A file of a run that is damaged, or that another version wrote."""

    exit_code = 3  # of the command: damaged data
