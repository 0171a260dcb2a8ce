# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The mesh of the command's options, of present or absent devices."""

import math
from typing import Any

from dovetail_stack.processes import say


def make_mesh(axes: dict[str, int], *, absent: str | None = None) -> Any:
    """Returns the mesh of the command's options.

    Args:
        axes: Sizes of the axes.
        absent: Kind of absent devices, such as "H200". The mesh is then abstract.

    Raises:
        ValueError: There are too few devices, or the kind is unknown.
    """
    import jax

    from dovetail_train import abstract_mesh, caches_cpu_programs, make_mesh

    used = math.prod(axes.values())
    if absent is not None:
        return abstract_mesh(used, device=absent, **axes)
    present = jax.device_count()
    if used > present:
        given = " × ".join(f"--{axis} {size}" for axis, size in axes.items() if size > 1)
        raise ValueError(
            f"{given} needs {used} devices and there are {present}: lower one of them, or ask "
            f"with --estimate what a step would need there"
        )
    if used < present and jax.process_count() > 1:
        axes, used = _over_all(axes, present), present
    if used < present:
        say(f"Using {used} of {present} devices; --fsdp {present} uses all.")
    devices = jax.devices()[:used]
    if caches_cpu_programs(devices):
        _compile_anew()
    return make_mesh(**axes, devices=devices)


def _over_all(axes: dict[str, int], present: int) -> dict[str, int]:
    """Returns the axes with fsdp over the devices that are left: of no process may any be."""
    used = math.prod(axes.values())
    if axes["fsdp"] > 1 or present % used:
        given = " × ".join(f"--{axis} {size}" for axis, size in axes.items() if size > 1)
        raise ValueError(
            f"the mesh of several processes must have all of their {present} devices, got {given} "
            f"for {used}: change one of them, or leave out --fsdp, which then takes the rest"
        )
    say(f"Using all {present} devices of the processes: --fsdp {present // used}.")
    return axes | {"fsdp": present // used}


def _compile_anew() -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides at its first compilation, which may be over
    say(
        "JAX_COMPILATION_CACHE_DIR is not used: several CPU devices can stop for ever in programs "
        "that come from it."
    )
