# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Needs of a step on devices that may be absent: estimated, and as their compiler has it."""

import dataclasses
import functools
import importlib.util
import json
import math
import re
from typing import TYPE_CHECKING, Any

from dovetail_stack import text_jobs
from dovetail_stack.launch_settings import accepting, check_batch, outlined
from dovetail_stack.mesh import make_mesh
from dovetail_stack.processes import say
from dovetail_stack.settings import FromText, Settings, option

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    from dovetail_cluster import Devices
    from dovetail_train import Estimate, Program

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
    with accepting(run):
        estimate = _estimate(run, mesh=mesh, dcn=dcn, **rates)
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


def _estimate(
    run: Settings, *, mesh: "AbstractMesh", dcn: dict[str, int] | None = None, **rates: float
) -> "Estimate":
    """Estimates memory and time of a step. Writes nothing and reads no weights.

    Args:
        run: Settings.
        mesh: Abstract mesh, with the kind of its devices.
        dcn: Slices along each axis that crosses slow links. Default: one slice.
        **rates: Measured rates of the devices, as `dovetail_train.estimate` takes them.

    Returns:
        The estimate. Its remedies are options of the command.
    """
    from dovetail_stack.recipes.fitting import estimate_step

    check_batch(run, mesh)
    if isinstance(run, FromText):
        run = text_jobs.with_keys(run)
    needs = estimate_step(outlined(run, mesh), device=None, dcn=dcn, **rates)
    typed = [dataclasses.replace(r, code=_options(r.changes)) for r in needs.remedies]
    return dataclasses.replace(needs, remedies=tuple(typed))


def _options(changes: dict[str, Any]) -> str:
    """Returns the options of the command for the changes of a remedy."""
    named = {"compute": "precision", "rows": "global_batch"}
    values = changes | ({"remat": "all"} if "remat" in changes else {})
    return " ".join(f"{option(named.get(name, name))} {value}" for name, value in values.items())


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
    with accepting(run):
        return _program(run, mesh)


def _program(run: Settings, mesh: "Mesh") -> "Program":
    """Returns the step of a run for a compiler. Writes nothing and reads no weights.

    Args:
        run: Settings.
        mesh: Devices, which may be absent.
    """
    from dovetail_stack.recipes.fitting import step_program

    check_batch(run, mesh)
    if isinstance(run, FromText):
        run = text_jobs.with_keys(run)
    return step_program(outlined(run, mesh))


def _target(name: str, axes: dict[str, int], *, compiled: bool) -> "Devices | None":
    """Returns the devices, or None for the name of a kind that is not to be compiled for."""
    sized = re.search(r":|\s[x×]\s*\d+$", name)
    if not sized and not compiled:
        return None
    from dovetail_cluster import devices

    count = math.prod(axes.values())
    tpu = re.match(r"(tpu|v\d)", name.strip(), re.IGNORECASE)
    target = devices(name) if sized or tpu else devices(name, count=count)
    if tpu and compiled and importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            f"--compile needs the compiler of TPUs in libtpu, got none for {name}: type pip "
            "install 'dovetail-cluster[tpu-plan]'"
        )
    if target.count != count:
        given = " ".join(f"{option(axis)} {size}" for axis, size in axes.items() if size > 1)
        raise ValueError(
            f"the product of the axes must be the {target.count} devices of {target}, got "
            f"{given or 'one device'}: pass for example --fsdp {target.count}"
        )
    return target
