# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Needs of a step on devices that may be absent: estimated, and as their compiler has it."""

import functools
import json
import math
import re
from typing import TYPE_CHECKING, Any

from dovetail_stack import training
from dovetail_stack.mesh import make_mesh
from dovetail_stack.processes import say
from dovetail_stack.settings import Settings, option

if TYPE_CHECKING:
    from dovetail_cluster import Devices
    from dovetail_train import Program

COMPILE_S = 900.0  # of --compile without a number

# Rates for --estimate, as `dovetail_train.estimate` names them.
RATES = {
    "peak_flops": "for --estimate: FLOP/s of a device in the precision of the run (as published)",
    "memory_bytes_per_s": "for --estimate: bandwidth of its memory (as published)",
    "link_bytes_per_s": "for --estimate: what it sends within its slice (not known)",
    "dcn_bytes_per_s": "for --estimate: what it sends to other slices (not known)",
}


def given_rates(values: dict[str, Any]) -> dict[str, float]:
    """Returns the given rates. Raises ValueError for options of an estimate without one.

    Args:
        values: Parsed arguments by name.
    """
    rates = {rate: values[rate] for rate in RATES if rate in values}
    if "estimate" in values:
        return rates
    given = [f"{option(rate)} {value:g}" for rate, value in rates.items()]
    if given or "compile" in values:
        raise ValueError(
            f"rates of devices and --compile are for an estimate, got "
            f"{' '.join(given) or '--compile'} without one: add --estimate KIND"
        )
    return {}


def report(
    run: Settings,
    name: str,
    axes: dict[str, int],
    *,
    dcn: dict[str, int] | None = None,
    compile_s: float | None = None,
    as_json: bool = False,
    rates: dict[str, float],
) -> str:
    """Returns the needs of a step as text: the estimate, and the compiler's figures.

    Args:
        run: Settings.
        name: Kind of device such as "H200", or devices such as "TPU v5e:16x16".
        axes: Sizes of the mesh.
        dcn: Slices along each axis that crosses slow links. Default: those of `name` along data.
        compile_s: Compile the step for the devices, too, within so many seconds. Progress goes to
            standard error.
        as_json: Return one JSON object.
        rates: Measured rates of the devices.

    Raises:
        ValueError: The devices are unknown, the mesh has another number of them, or the time is
            not positive.
        RuntimeError: The compiler for the devices is not installed.
        TimeoutError: The step is not compiled in time.
    """
    if compile_s is not None and not compile_s > 0:
        raise ValueError(
            f"the seconds of a compilation must be positive, got --compile {compile_s:g}: pass for "
            f"example --compile {COMPILE_S:g}"
        )
    target = _target(name, axes, compiled=compile_s is not None)
    if target is not None and target.slices > 1 and dcn is None:
        dcn = {"data": target.slices}
    mesh = make_mesh(axes, absent=name if target is None else target.kind.name)
    estimate = training.estimate(run, mesh=mesh, dcn=dcn, **rates)
    if compile_s is None:
        return json.dumps(estimate.json(), indent=2) if as_json else str(estimate)
    from dovetail_cluster import compiled as compile_for

    assert target is not None
    say(f"Compiling the step for {target}, in a process of its own, for at most {compile_s:g} s")
    build = functools.partial(step_on, run, axes, dcn)
    program = compile_for(build, target=target, timeout_s=compile_s, progress=_progress)
    if as_json:
        return json.dumps({**estimate.json(), "compiled": program.json()}, indent=2)
    return f"{estimate}\n\n{program}"


def _progress(stage: str, seconds: float) -> None:
    say(f"  {seconds:.0f} s: {stage}")


def step_on(
    run: Settings, axes: dict[str, int], dcn: dict[str, int] | None, devices: list[Any]
) -> "Program":
    """Returns the step of a run on a mesh of these devices, for their compiler.

    Args:
        run: Settings.
        axes: Sizes of the mesh.
        dcn: Slices along each axis that crosses slow links.
        devices: JAX's devices, which may be absent.
    """
    from dovetail_train import make_mesh

    mesh = make_mesh(**axes, devices=devices, dcn=dcn, allow_split_physical_axes=True)
    return training.step_program(run, mesh)


def _target(name: str, axes: dict[str, int], *, compiled: bool) -> "Devices | None":
    """Returns the devices, or None for the name of a kind that is not to be compiled for."""
    sized = re.search(r":|\s[x×]\s*\d+$", name)
    if not sized and not compiled:
        return None
    from dovetail_cluster import devices

    count = math.prod(axes.values())
    tpu = re.match(r"(tpu|v\d)", name.strip(), re.IGNORECASE)
    target = devices(name) if sized or tpu else devices(name, count=count)
    if target.count != count:
        given = " ".join(f"{option(axis)} {size}" for axis, size in axes.items() if size > 1)
        raise ValueError(
            f"the product of the axes must be the {target.count} devices of {target}, got "
            f"{given or 'one device'}: pass for example --fsdp {target.count}"
        )
    return target
