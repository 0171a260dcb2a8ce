# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The environment of a test program that runs on several forced CPU devices.

Such a program must not use the compilation cache: XLA:CPU loses the order of collectives when it
loads an executable in which a loop and the code around it both communicate, and the devices then
wait for each other for ever (docs/cpu_meshes.md has the cause and the smallest program).
"""

from __future__ import annotations

import os
from pathlib import Path


def environment(count: int, *, optimize: bool = False, cached: bool = False) -> dict[str, str]:
    """Variables for a subprocess that sees `count` CPU devices, without the cache if many.

    Args:
        count: Devices of the process.
        optimize: Let XLA optimize. A small program compiles for longer than it runs, so the
            default is off.
        cached: Leave the cache on, for a program that first computes on one device alone, and
            calls `stop_caching` of this module before it uses several.

    Returns:
        os.environ with what the program needs.
    """
    flags = f"--xla_force_host_platform_device_count={count}"
    level = "" if optimize else " --xla_backend_optimization_level=0"
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),  # for stop_caching
        "XLA_FLAGS": flags + level,
        "JAX_PLATFORMS": "cpu",
        **({} if count == 1 or cached else {"JAX_ENABLE_COMPILATION_CACHE": "false"}),
    }


def stop_caching() -> None:
    """Compiles everything anew from here on, in a program that began with the cache."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides once, at its first compilation
