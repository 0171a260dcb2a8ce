# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Needs of a step on devices that may be absent: estimated, and as their compiler has it."""

import dataclasses
import functools
import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from dovetail_cluster import Devices, compiled, devices
from dovetail_stack import text_jobs
from dovetail_stack.launch_options import COMPILE_S
from dovetail_stack.launch_settings import accepting, check_batch, jobs_of, planned
from dovetail_stack.processes import make_mesh, say
from dovetail_stack.recipes.fitting import Recipe, estimate_step, step_program
from dovetail_stack.settings import Settings, option
from dovetail_train import Program
from dovetail_train import make_mesh as mesh_of


def report(
    values: dict[str, Any],
    out: Path,
    axes: dict[str, int],
    *,
    dcn: dict[str, int] | None,
    rates: dict[str, float],
) -> str:
    """Returns the needs of a step as text, or as JSON: the estimate, and the compiler's figures.

    Writes nothing and reads no weights. Progress goes to standard error.

    Args:
        values: Parsed options by name, with the devices: "H200", or "TPU v5e:16x16".
        out: Directory of the run.
        axes: Sizes of the mesh.
        dcn: Slices along each axis that crosses slow links. None: those of the devices along data.
        rates: Measured rates of the devices.

    Raises:
        ValueError: The devices are unknown, the mesh has another number of them, or the time is
            not positive.
        RuntimeError: The compiler for the devices is not installed.
        TimeoutError: The step is not compiled in time.
    """
    run, name, compile_s = planned(values, out), values["estimate"], values.get("compile")
    if compile_s is not None and not compile_s > 0:
        raise ValueError(
            f"the seconds of a compilation must be positive, got --compile {compile_s:g}: pass for "
            f"example --compile {COMPILE_S:g}"
        )
    target = _target(name, axes, to_compile=compile_s is not None)
    if target is not None and target.slices > 1 and dcn is None:
        dcn = {"data": target.slices}
    mesh = make_mesh(axes, absent=name if target is None else target.kind.name)
    with accepting(run):
        needs = estimate_step(_recipe(run, mesh), device=None, dcn=dcn, **rates)
    typed = [dataclasses.replace(r, code=_options(r.changes)) for r in needs.remedies]
    needs = dataclasses.replace(needs, remedies=tuple(typed))
    if compile_s is None:
        return json.dumps(needs.json(), indent=2) if "json" in values else str(needs)
    assert target is not None
    say(f"Compiling the step for {target}, in a process of its own, for at most {compile_s:g} s")
    build = functools.partial(_step_on, run, axes, dcn)
    program = compiled(build, target=target, timeout_s=compile_s, progress=_progress)
    if "json" in values:
        return json.dumps({**needs.json(), "compiled": program.json()}, indent=2)
    return f"{needs}\n\n{program}"


def _options(changes: dict[str, Any]) -> str:
    """Returns the options of the command for the changes of a remedy."""
    named = {"compute": "precision", "rows": "global_batch"}
    values = changes | ({"remat": "all"} if "remat" in changes else {})
    return " ".join(f"{option(named.get(name, name))} {value}" for name, value in values.items())


def _progress(stage: str, seconds: float) -> None:
    say(f"  {seconds:.0f} s: {stage}")


def _step_on(
    run: Settings, axes: dict[str, int], dcn: dict[str, int] | None, devices: list[Any]
) -> Program:
    """Returns the step of a run on a mesh of these devices, for their compiler."""
    mesh = mesh_of(**axes, devices=devices, dcn=dcn, allow_split_physical_axes=True)
    with accepting(run):
        return step_program(_recipe(run, mesh))


def _recipe(run: Settings, mesh: Mesh | AbstractMesh) -> Recipe:
    """Returns the recipe of a run on devices that may be absent."""
    check_batch(run, mesh)
    return jobs_of(run).outlined(text_jobs.with_keys(run), mesh)


def _target(name: str, axes: dict[str, int], *, to_compile: bool) -> Devices | None:
    """Returns the devices, or None for the name of a kind that is not to be compiled for."""
    sized = re.search(r":|\s[x×]\s*\d+$", name)
    if not sized and not to_compile:
        return None
    count = math.prod(axes.values())
    tpu = re.match(r"(tpu|v\d)", name.strip(), re.IGNORECASE)
    target = devices(name) if sized or tpu else devices(name, count=count)
    if tpu and to_compile and importlib.util.find_spec("libtpu") is None:
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
