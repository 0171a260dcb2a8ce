# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of a command, of which process 0 works on the files of the run, and their mesh."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dovetail_stack._command import exit_code_of

T = TypeVar("T")


@contextlib.contextmanager
def joined(options: Mapping[str, Any]) -> Iterator[None]:
    """Joins the other processes for the block, if the command says so, and watches them.

    Enter it before any use of devices. Raises ValueError for options that contradict each other.
    """
    given = {name: options[name] for name in ("processes", "process") if name in options}
    coordinator = options.get("coordinator")
    if coordinator is None and not given:
        yield
        return
    if "estimate" in options:
        raise ValueError(
            f"an estimate needs one process, got coordinator={coordinator}: leave out --coordinator"
        )
    if coordinator == "auto" and given:
        shown = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(
            f"with coordinator=auto JAX detects the processes, got {shown}: leave these out, or "
            f"pass --coordinator HOST:PORT"
        )
    from dovetail_train import initialize_distributed, watch_processes

    _keep_stdout()
    initialize_distributed(None if coordinator == "auto" else coordinator, **given)
    with watch_processes():
        yield


def _keep_stdout() -> None:
    """Sends the lines of C libraries to standard error: Gloo prints its connections."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)


def is_first() -> bool:
    """Tests whether this process writes and prints: process 0, or the only one."""
    import jax

    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line of progress to standard error, on process 0."""
    if is_first():
        print(text, file=sys.stderr, flush=True)


def on_first(work: Callable[[], Any]) -> Any:
    """Calls `dovetail_train.on_first`. If `work` fails, all processes end with its exit code."""
    from dovetail_train import on_first

    def coded() -> Any:
        try:
            return work()
        except Exception as error:
            error.exit_code = exit_code_of(error)  # pyright: ignore[reportAttributeAccessIssue]
            raise

    return on_first(coded)


def shared(write: Callable[[], T], read: Callable[[], T]) -> T:
    """Returns the result of `write` on process 0, and then of `read` on the others."""
    written: list[T] = []
    on_first(lambda: written.append(write()))
    return written[0] if written else read()


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
    import jax

    from dovetail_train import abstract_mesh, caches_cpu_programs
    from dovetail_train import make_mesh as mesh_of

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
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides at its first compilation, which may be over
    say(
        "JAX_COMPILATION_CACHE_DIR is not used: several CPU devices can stop for ever in programs "
        "that come from it."
    )
