# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs compiled for absent devices: sizes, collectives, or the compiler's refusal.

A process of its own compiles (`worker`). A refusal is a result: `fits` is False, and `reason` has
the compiler's text.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from dovetail_cluster.absent.count import Traffic
from dovetail_cluster.absent.launches import ArrayCopy
from dovetail_cluster.absent.targets import Devices, check_description
from dovetail_cluster.absent.worker import ANSWER, COMMAND, REQUEST, Answer, Request, environment
from dovetail_cluster.errors import BuildError

PROGRESS_S = 5.0  # seconds between two reports of progress
# Share of a device's rate that a collective of n devices needs for each byte of its result.
_SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1.0,
    "all-to-all": lambda n: (n - 1) / n,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A program compiled for a target. Print it to read it as a table.

    Sizes are bytes on one device. They are None if the compiler has refused the program.

    Attributes:
        target: The devices.
        choice: Arguments passed by `search`.
        items: Rows or tokens of a step, by which `search` divides times; None for no number.
        fits: The compiler has accepted the program, and the device's memory holds it.
        reason: Why it does not fit: the compiler's text, or sizes. "" if it fits.
        argument_bytes: Arguments.
        output_bytes: Results.
        alias_bytes: Results in the place of donated arguments.
        temp_bytes: Temporaries.
        executable_bytes: The program itself.
        collectives: Traffic by kind, such as "all-gather".
        unknown_loops: Loops with collectives whose number of rounds is not known. Collectives in
            them are counted once.
        launches: Kernels and copies that a GPU is given, as are the next three; None for others.
        host_syncs: Loops without a known number of rounds, and conditionals: the host waits there.
        bytes_outside_products: Bytes moved by launches that multiply no matrices.
        widest_copies: The largest arrays written although an operand has their elements already.
        flops: FLOPs of the program on all devices, if the built object counts them.
        mesh: Sizes of the axes above 1.
        lower_s: Seconds of `build`, tracing and lowering.
        compile_s: Seconds of compilation.
        versions: Versions of JAX and the compiler.
    """

    target: Devices
    choice: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    items: float | None = None
    fits: bool
    reason: str = ""
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None
    executable_bytes: int | None = None
    collectives: Mapping[str, tuple[Traffic, ...]] = dataclasses.field(default_factory=dict)
    unknown_loops: int = 0
    launches: int | None = None
    host_syncs: int | None = None
    bytes_outside_products: int | None = None
    widest_copies: tuple[ArrayCopy, ...] = ()
    flops: float | None = None
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lower_s: float | None = None
    compile_s: float | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def peak_bytes(self) -> int | None:
        """Arguments, results beside donated arguments, and temporaries."""
        arguments, outputs = self.argument_bytes, self.output_bytes
        aliased, temporaries = self.alias_bytes, self.temp_bytes
        if arguments is None or outputs is None or aliased is None or temporaries is None:
            return None
        return arguments + outputs - aliased + temporaries

    @property
    def device_bytes(self) -> int | None:
        """Memory of one device, None for a CPU."""
        return self.target.memory_bytes

    @property
    def bound_s(self) -> float | None:
        """Least seconds of a call, if the FLOPs and the devices' rates are known.

        The longer of the products at the peak of bfloat16, and of the collectives on the links
        within a slice or host. Rates between slices differ by site, so they do not count.
        """
        kind = self.target.kind
        peak, links = kind.peak_flops.get("bfloat16"), kind.link_bytes_per_s
        if not self.fits or self.flops is None or peak is None or links is None:
            return None
        products = self.flops / (self.target.count * peak)
        return max(products, self.sent_bytes("ici", "nvlink") / links)

    def sent_bytes(self, *links: str) -> float:
        """Returns the bytes sent by one device over links such as "ici" or "dcn", at least."""
        return math.fsum(
            _SENT.get(kind, lambda n: 1.0)(entry.devices) * entry.bytes
            for kind, entries in self.collectives.items()
            for entry in entries
            if entry.link in links
        )

    def json(self) -> dict[str, Any]:
        """Returns the fields as values of JSON."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        collectives = {
            kind: [dataclasses.asdict(entry) for entry in entries]
            for kind, entries in self.collectives.items()
        }
        sizes = {"peak_bytes": self.peak_bytes, "device_bytes": self.device_bytes}
        changed = {"target": str(self.target), "collectives": collectives, "bound_s": self.bound_s}
        changed["widest_copies"] = [dataclasses.asdict(copy) for copy in self.widest_copies]
        plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in fields.items()}
        return {**plain, **sizes, **changed}

    def __str__(self) -> str:
        mesh = " ".join(f"{axis}={size}" for axis, size in self.mesh.items()) or "one device"
        choice = " ".join(f"{name}={value}" for name, value in self.choice.items())
        title = f"{self.target}, {choice or mesh}: {'fits' if self.fits else 'does not fit'}"
        lines = [title, *(f"  {line}" for line in self.reason.splitlines()[:6])]
        if self.peak_bytes is None:
            return "\n".join(lines)
        held = f" of {_size(self.device_bytes)}" if self.device_bytes else ""
        sizes = {
            "arguments": _size(self.argument_bytes),
            "temporaries": _size(self.temp_bytes),
            "peak": _size(self.peak_bytes) + held,
            "program": _size(self.executable_bytes),
            "compilation": f"{self.compile_s:.1f} s, after {self.lower_s:.1f} s of tracing",
        }
        if self.bound_s is not None:
            each = "" if self.items is None else f", {self.bound_s / self.items:.4g} s an item"
            sizes["least time"] = f"{self.bound_s:.4g} s a step{each}"
        if self.launches is not None:
            moved = _size(self.bytes_outside_products)
            sizes["launches"] = f"{self.launches}, {moved} outside products"
            sizes["host waits"] = f"{self.host_syncs}, at loops of unknown length and conditionals"
        lines += [f"  {name:<20}{value}" for name, value in sizes.items()]
        rows = [
            f"  {kind:<20}{entry.count:>6} x  {_size(entry.bytes):>11}  "
            f"{', '.join(entry.axes) or '-':<20}{entry.link}"
            for kind, entries in self.collectives.items()
            for entry in entries
        ]
        if rows:
            lines.append(f"  {'collective':<20}{'runs':>6}    {'results':>11}  {'axes':<20}link")
        if self.unknown_loops:
            rows.append(f"  {self.unknown_loops} loops of unknown length count once")
        return "\n".join(lines + rows)


def _size(size: int | None) -> str:
    if size is None:
        return "unknown"
    number = float(size)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


def compiled(
    build: Callable[..., Any],
    *,
    target: Devices,
    compiler_options: Mapping[str, Any] | None = None,
    timeout_s: float = 900.0,
    progress: Callable[[str, float], None] | None = None,
) -> Compiled:
    """Compiles a program for a target, in a process without accelerators.

    The process ends with this one, however this one ends.

    Args:
        build: Called with the target's devices. Returns an object with `lower()`, or with `jit()`
            and `args`: a trainer's program is one, and a `jax.stages.Lowered` will do. Its `mesh`
            names the axes of collectives; default: the mesh of its arguments. Its `flops()` gives
            `Compiled.bound_s`. Nothing may be allocated on the devices: pass
            `jax.ShapeDtypeStruct`. It is pickled, its module by name.
        target: The devices, from `devices`.
        compiler_options: XLA's options by name, as `jax.stages.Lowered.compile` takes them.
        timeout_s: Seconds for all of it.
        progress: Called about every 5 seconds with the stage, "tracing" or "compilation", and the
            seconds since the start.

    Returns:
        Sizes, collectives and times; a refusal of the compiler with `fits=False`.

    Raises:
        BuildError: `build` has raised, or the compiler of the target is not installed.
        TimeoutError: The process has not ended in time. It is killed.
        TypeError: `build` cannot be pickled.
        ValueError: XLA has no description of the target.

    Example:

        >>> import jax
        >>> def build(devices):
        ...     mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
        ...     rows = jax.sharding.NamedSharding(mesh, jax.P("data"))
        ...     x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=rows)
        ...     return jax.jit(lambda x: x + 1).lower(x)
        >>> from dovetail_cluster import compiled, devices
        >>> compiled(build, target=devices("CPU x 4")).argument_bytes
        32
    """
    options = dict(compiler_options or {})
    return run(Request(target, build, {}, options), timeout_s=timeout_s, progress=progress)


def run(
    request: Request,
    *,
    timeout_s: float,
    progress: Callable[[str, float], None] | None = None,
) -> Compiled:
    """Compiles a request in a process of its own. Raises the errors of `compiled`.

    Args:
        request: The program and its target.
        timeout_s: Seconds for all of it.
        progress: As for `compiled`.
    """
    check_description(request.target)
    try:
        pickled = cloudpickle.dumps(request)
    except Exception as error:
        raise TypeError(
            f"build and its arguments must be possible to pickle, got {request.build!r} and "
            f"{type(error).__name__}: {error}; make meshes and jitted functions inside build"
        ) from error
    with tempfile.TemporaryDirectory(prefix="dovetail-absent-") as name:
        folder = Path(name)
        (folder / REQUEST).write_bytes(pickled)
        variables = environment(request.target, os.environ)
        code, log = _run(folder, variables, timeout_s, progress or (lambda stage, seconds: None))
        try:
            answer = pickle.loads((folder / ANSWER).read_bytes())
        except FileNotFoundError:
            answer = Answer("build", f"the process {_end(code)}, without an answer:\n{log}", {})
    if answer.stage == "build":
        raise BuildError(
            f"build(devices) must return a program for {request.target}, got an error:\n"
            f"{answer.error}"
        )
    known = {**answer.values, "target": request.target, "choice": dict(request.choice)}
    if answer.stage == "compile":
        reason = answer.error or f"the compiler {_end(code)}:\n{log}"
        return Compiled(fits=False, reason=reason, **known)
    return _judged(Compiled(fits=True, **known))


def _run(
    folder: Path,
    variables: Mapping[str, str],
    timeout_s: float,
    progress: Callable[[str, float], None],
) -> tuple[int, str]:
    """Runs the worker. Returns its exit code and the end of its log."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(folder)],
            env=dict(variables),
            stdin=subprocess.PIPE,  # the worker ends with this end of it, even after SIGKILL
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a compiler's own processes end with it
        )
        try:
            code = _wait(process, folder, timeout_s, progress)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
    text = log.read_text(encoding="utf-8", errors="replace")
    return code, "\n".join(text.splitlines()[-30:])


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    timeout_s: float,
    progress: Callable[[str, float], None],
) -> int:
    began = time.monotonic()
    while True:
        spent = time.monotonic() - began
        try:
            return process.wait(max(0.0, min(PROGRESS_S, timeout_s - spent)))
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - began
        # The first answer is that of the traced program.
        stage = "compilation" if (folder / ANSWER).exists() else "tracing"
        if spent >= timeout_s:
            raise TimeoutError(
                f"the program must be compiled within timeout_s={timeout_s:g}, got no answer by "
                f"then, in {stage}; write timeout_s={2 * timeout_s:g}, or make the program smaller"
            )
        progress(stage, spent)


def _end(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _judged(program: Compiled) -> Compiled:
    """Returns the program with `fits` by its sizes: XLA:GPU compiles too large programs, too."""
    assert program.peak_bytes is not None
    assert program.executable_bytes is not None
    needed = program.peak_bytes + program.executable_bytes
    if program.device_bytes is None or needed <= program.device_bytes:
        return program
    reason = f"it needs {_size(needed)} of {_size(program.device_bytes)} of memory"
    return dataclasses.replace(program, fits=False, reason=reason)
