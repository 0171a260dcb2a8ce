# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs one training function on many hosts as a program that survives.

- How a job meets failures: `Elastic`
- Errors: `JobError`, `RankError`, `StallError`, `HostsError`
"""

from importlib.metadata import version as _version

from dovetail_cluster.elastic import Elastic
from dovetail_cluster.errors import HostsError, JobError, RankError, StallError

__all__ = [  # noqa: RUF022, by topic
    "Elastic",
    # Errors
    "JobError",
    "RankError",
    "StallError",
    "HostsError",
]

__version__ = _version("dovetail-cluster")
