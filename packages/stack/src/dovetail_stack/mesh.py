# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The mesh of the command's options, of present or absent devices."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from dovetail_stack.processes import say
from dovetail_stack.settings import AXES
from dovetail_train import abstract_mesh, caches_cpu_programs
from dovetail_train import make_mesh as mesh_of


def make_mesh(
    axes: dict[str, int],
    *,
    absent: str | None = None,
    dcn: dict[str, int] | None = None,
    use_all: bool = False,
) -> Any:
    """Returns the mesh of the command's options.

    Args:
        axes: Sizes of the axes.
        absent: Kind of absent devices, such as "H200". The mesh is then abstract.
        dcn: Slices along each axis that crosses slow links; see `dovetail_train.make_mesh`.
        use_all: Use the devices that are left as fsdp. Several processes always do.

    Raises:
        ValueError: There are too few devices, slices do not divide an axis, or the kind is unknown.
    """
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
    if used < present and (use_all or jax.process_count() > 1):
        axes, used = over_all(axes, present), present
        say(f"Using all {present} devices of the processes: --fsdp {axes['fsdp']}.")
    if used < present:
        say(f"Using {used} of {present} devices; --fsdp {present} uses all.")
    devices = jax.devices()[:used]
    if caches_cpu_programs(devices):
        _compile_anew()
    # As --estimate --compile has it: refused only where no arrangement exists.
    return mesh_of(**axes, devices=devices, dcn=dcn, allow_split_physical_axes=True)


def axes_of(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of the axes of the mesh, by the options of a command."""
    return {axis: values.get(axis, 1) for axis in AXES}


def parsed_dcn(text: str, axes: dict[str, int]) -> dict[str, int]:
    """Returns the slices along each axis of an option such as "data=2" or "data=2,fsdp=2".

    Raises ValueError for another form, another axis, or slices that do not divide one.
    """
    pairs = [item.split("=") for item in text.split(",")]
    if any(len(pair) != 2 or not pair[1].isdecimal() for pair in pairs):
        raise ValueError(
            f"dcn must name axes and the slices along each, got dcn={text!r}: pass --dcn 'data=2'"
        )
    dcn = {axis: int(slices) for axis, slices in pairs}
    for axis, slices in dcn.items():
        if axis not in ("data", "fsdp") or not slices or axes[axis] % slices:
            sizes = " ".join(f"--{name} {size}" for name, size in axes.items() if size > 1)
            raise ValueError(
                f"dcn must name data or fsdp, and slices that divide it, got dcn={text!r} with "
                f"{sizes or 'one device'}: pass for example --data 2 --dcn 'data=2'"
            )
    return dcn


def over_all(axes: dict[str, int], present: int) -> dict[str, int]:
    """Returns the axes with fsdp over the devices that are left: of no process may any be.

    Args:
        axes: Sizes of the axes.
        present: Number of devices.

    Raises:
        ValueError: The sizes do not divide the devices, or fsdp is given and leaves some.
    """
    used = math.prod(axes.values())
    if used == present:
        return axes
    if axes["fsdp"] > 1 or present % used:
        given = " × ".join(f"--{axis} {size}" for axis, size in axes.items() if size > 1)
        raise ValueError(
            f"the mesh of several processes must have all of their {present} devices, got {given} "
            f"for {used}: change one of them, or leave out --fsdp, which then takes the rest"
        )
    return axes | {"fsdp": present // used}


def _compile_anew() -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides at its first compilation, which may be over
    say(
        "JAX_COMPILATION_CACHE_DIR is not used: several CPU devices can stop for ever in programs "
        "that come from it."
    )
