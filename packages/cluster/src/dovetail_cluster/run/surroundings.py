# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The environment of ranks: the daemon's, without what would mislead JAX."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail_cluster.wire import without_keys

# An outer job's variables let JAX or libtpu find hosts that are not this job's: Slurm, Open MPI,
# PMI, Ray, and several TPU slices (ray-project/ray#62893).
_PREFIXES = ("MEGASCALE_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "RAY_", "JOBSET_")
_NAMES = frozenset(
    (
        "COORDINATOR_ADDRESS",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_COORDINATOR_BIND_ADDRESS",
        "JAX_LOCAL_DEVICE_IDS",
        "JAX_NUM_PROCESSES",
        "JAX_PARTITION_INDEX",
        "JAX_PROCESS_COUNT",
        "JAX_PROCESS_ID",
        "JAX_SLICE_INDEX",
        "NUM_PROCESSES",
        "PROCESS_ID",
    )
)
_FLAG = "--xla_force_host_platform_device_count"


def rank_environment(environment: Mapping[str, str], devices: int | None) -> dict[str, str]:
    """Builds the variables of the server of ranks; JAX reads some of them as it is imported.

    Args:
        environment: The daemon's own.
        devices: Number of CPU devices to make, and no other platform. None leaves the platform.

    Returns:
        The variables, without the cluster's key.
    """
    variables = {
        name: value
        for name, value in without_keys(environment).items()
        if name not in _NAMES and not name.startswith(_PREFIXES)
    }
    if devices is None:
        return variables
    flags = [f for f in variables.get("XLA_FLAGS", "").split() if not f.startswith(_FLAG)]
    variables["XLA_FLAGS"] = " ".join([*flags, f"{_FLAG}={devices}"])
    variables["JAX_PLATFORMS"] = "cpu"
    variables.pop("JAX_NUM_CPU_DEVICES", None)
    if devices > 1:
        # XLA:CPU loses the order of collectives in programs that it loads from the cache, and
        # several devices then wait for each other for ever (jaxlib 0.10.2 and 0.12.0).
        variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    return variables
