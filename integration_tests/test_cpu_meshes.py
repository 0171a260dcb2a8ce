# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs on several CPU devices and JAX's compilation cache, which do not go together yet."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import forced_devices

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).parent / "programs" / "loaded_collectives.py"
# XLA ends the process itself once its devices have waited so long for each other.
IMPATIENT = (
    " --xla_cpu_collective_call_warn_stuck_timeout_seconds=30"
    " --xla_cpu_collective_call_terminate_timeout_seconds=120"
)


def run_twice(folder, *parts):
    """Exit codes of a process that compiles and of one that loads what the first compiled."""
    environment = forced_devices.environment(2, optimize=True)
    environment["XLA_FLAGS"] += IMPATIENT
    environment |= {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    line = [sys.executable, str(PROGRAM), *parts]
    return [subprocess.run(line, env=environment, capture_output=True).returncode for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [["loop"], ["around"]])
def test_collectives_of_one_sequence_keep_their_order(parts, tmp_path):
    assert run_twice(tmp_path, *parts) == [0, 0]


@pytest.mark.slow
def test_a_loop_and_the_code_around_it_still_lose_theirs(tmp_path):
    first, second = run_twice(tmp_path, "loop", "around")
    assert first == 0
    assert second < 0, (
        "this jaxlib keeps the order: mend docs/cpu_meshes.md, and let forced_devices.py, the "
        "warning of dovetail_train.make_mesh and the command use the cache from this version on"
    )


def test_the_command_trains_on_two_devices_beside_a_users_cache(tmp_path):
    environment = forced_devices.environment(2)
    environment |= {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    text = str(Path(sysconfig.get_paths()["stdlib"]) / "json")
    options = ["--embed", "16", "--depth", "1", "--heads", "2", "--kv-heads", "1", "--mlp", "32"]
    options += ["--vocab-size", "300", "--length", "16", "--global-batch", "8", "--steps", "1"]
    line = [
        sys.executable,
        "-m",
        "dovetail_stack",
        "train",
        "pretrain",
        "--text",
        text,
        "--fsdp",
        "2",
    ]
    done = subprocess.run(
        [*line, "--pattern", "*.py", "--out", str(tmp_path / "run"), *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "JAX_COMPILATION_CACHE_DIR is not used: several CPU devices" in done.stderr
    kept = [path.name for path in (tmp_path / "cache").glob("*-cache")]
    assert not [name for name in kept if "step" in name], kept
