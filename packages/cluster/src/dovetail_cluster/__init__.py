# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs one training function on many hosts through crashes, hangs and resizing.

    >>> with Cluster.local(hosts=2) as cluster:
    ...     cluster.run(lambda ctx: (ctx.rank, ctx.hosts)).values
    ((0, 2), (1, 2))

- Clusters: `Cluster`, with `Result` of a run, and `Host` to inject faults
- Where hosts come from: `Local`, `Ray`, `Slurm`, `Env`; `manifest` for their schedulers
- Inside the function: `Context`
- Checkpoints in the hosts' memory: `LocalTier` over a `DurableStore`
- Time between checkpoints: `Advice` of a tier, `advised_interval_s` for any store
- How a job meets failures: `Elastic`
- Devices that are absent: `devices`, `compiled`, `search`, `Compiled`, `Devices`, `Traffic`,
  `ArrayCopy`
- Errors: `JobError`, `RankError`, `StallError`, `HostsError`, `BuildError`
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_cluster._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_cluster._suggestions import public_names as _public_names
from dovetail_cluster.absent import (
    ArrayCopy,
    Compiled,
    Devices,
    Traffic,
    compiled,
    devices,
    search,
)
from dovetail_cluster.backends.env import Env
from dovetail_cluster.backends.local import Local
from dovetail_cluster.backends.ray import Ray
from dovetail_cluster.backends.slurm import Slurm
from dovetail_cluster.cluster import Cluster, Result
from dovetail_cluster.context import Context
from dovetail_cluster.control.interval import advised_interval_s
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.errors import BuildError, HostsError, JobError, RankError, StallError
from dovetail_cluster.faults import Host
from dovetail_cluster.manifest import manifest
from dovetail_cluster.store import DurableStore
from dovetail_cluster.tier.local import Advice, LocalTier

__all__ = [  # noqa: RUF022, by topic
    # Clusters
    "Cluster",
    "Result",
    "Host",
    # Where hosts come from
    "Local",
    "Ray",
    "Slurm",
    "Env",
    "manifest",
    # Inside the function
    "Context",
    # Checkpoints in memory
    "LocalTier",
    "Advice",
    "DurableStore",
    "advised_interval_s",
    # How a job meets failures
    "Elastic",
    # Devices that are absent
    "devices",
    "compiled",
    "search",
    "Compiled",
    "Devices",
    "Traffic",
    "ArrayCopy",
    # Errors
    "JobError",
    "RankError",
    "StallError",
    "HostsError",
    "BuildError",
]

__version__ = _version("dovetail-cluster")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "testing", **_ELSEWHERE)
