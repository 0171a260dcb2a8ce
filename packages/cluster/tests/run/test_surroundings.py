# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The environment of ranks."""

import pytest

from dovetail_cluster.run.surroundings import rank_environment


@pytest.mark.parametrize(
    "name",
    [
        *("MEGASCALE_COORDINATOR_ADDRESS", "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMI_RANK"),
        *("RAY_ADDRESS", "JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "DOVETAIL_CLUSTER_KEY"),
    ],
)
def test_what_would_mislead_jax_is_dropped(name):
    assert rank_environment({name: "1", "HOME": "/"}, None) == {"HOME": "/"}


def test_tpu_and_user_variables_stay():
    kept = {"TPU_WORKER_ID": "0", "XLA_FLAGS": "--a", "JAX_PLATFORMS": "tpu", "WANDB_MODE": "off"}
    assert rank_environment(kept, None) == kept


def test_cpu_devices_are_made_beside_the_users_flags():
    flags = "--xla_a=1 --xla_force_host_platform_device_count=8"
    variables = rank_environment({"XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "5"}, 2)
    assert variables["XLA_FLAGS"] == "--xla_a=1 --xla_force_host_platform_device_count=2"
    assert variables["JAX_PLATFORMS"] == "cpu"
    assert "JAX_NUM_CPU_DEVICES" not in variables


def test_several_cpu_devices_have_no_compilation_cache():
    assert rank_environment({}, 2)["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "JAX_ENABLE_COMPILATION_CACHE" not in rank_environment({}, 1)
