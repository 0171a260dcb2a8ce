# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os

from dovetail_cluster import compiled, devices
from dovetail_cluster.absent.worker import environment


def test_a_worker_sees_no_accelerator_and_no_other_job():
    base = {
        "HOME": "/h",
        "TPU_WORKER_ID": "3",
        "MEGASCALE_NUM_SLICES": "2",
        "JAX_COORDINATOR_ADDRESS": "a:1",
        "JAX_PLATFORMS": "tpu",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3 --xla_a=1",
    }
    found = environment(devices("TPU v5e:4x4"), base)
    assert found["HOME"] == "/h"
    assert (found["JAX_PLATFORMS"], found["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert found["XLA_FLAGS"] == "--xla_a=1"
    assert not {"TPU_WORKER_ID", "MEGASCALE_NUM_SLICES", "JAX_COORDINATOR_ADDRESS"} & found.keys()
    forced = "--xla_a=1 --xla_force_host_platform_device_count=8"
    assert environment(devices("CPU x 8"), base)["XLA_FLAGS"] == forced
    assert base["XLA_FLAGS"].endswith("--xla_a=1"), "the caller's own is as it was"


def test_a_worker_has_the_callers_path_and_the_targets_devices(tmp_path, monkeypatch):
    (tmp_path / "model_of_a_test.py").write_text(
        "import jax, os\n"
        "def build(devices):\n"
        "    assert len(devices) == 3 == jax.device_count()\n"
        f"    assert os.getpid() != {os.getpid()}\n"
        "    return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((5,), 'float32'))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import model_of_a_test  # pyright: ignore[reportMissingImports]  # written above

    program = compiled(model_of_a_test.build, target=devices("CPU x 3"))
    assert (program.argument_bytes, program.collectives, program.mesh) == (20, {}, {})
