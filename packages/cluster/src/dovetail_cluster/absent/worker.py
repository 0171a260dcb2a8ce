# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The process that compiles: Python with `COMMAND` and a folder.

It sees no accelerator, so it takes none from a running program. It alone loads libtpu, because
libtpu writes warnings on a host without TPUs. The folder holds the request; the answer is written
beside it. XLA may abort, so the answer is in a file as soon as the caller's part has succeeded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail_cluster.absent.count import Text, Traffic, traffic
from dovetail_cluster.absent.launches import launches_of
from dovetail_cluster.absent.targets import SLICES, Devices, joined, target_config

# Not by -m, which would give what is pickled another module.
COMMAND = "from dovetail_cluster.absent.worker import main; main()"
REQUEST, ANSWER, DUMP = "request.pickle", "answer.pickle", "xla"
_FORCED = "--xla_force_host_platform_device_count"
# Of a job that this process is no part of.
_FOREIGN = ("MEGASCALE_", "TPU_", "CLOUD_TPU_", "JAX_COORDINATOR")
# XLA:GPU may abort while it plans an all-reduce by a Triton kernel, which asks a present GPU.
_GPU_OPTIONS = {"xla_gpu_unsupported_use_all_reduce_one_shot_kernel": False}
# Modules with the compiler for absent devices, and what installs one.
_COMPILERS = {
    "tpu": (("libtpu",), "dovetail-cluster[tpu-plan]"),
    "cuda": (("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"), "jax[cuda13]"),
}


class Request(NamedTuple):
    """A program to compile.

    Attributes:
        target: Devices.
        build: The caller's function.
        choice: Its keyword arguments.
        options: Options of the compiler.
    """

    target: Devices
    build: Callable[..., Any]
    choice: Mapping[str, Any]
    options: Mapping[str, Any]


class Answer(NamedTuple):
    """The outcome of a request.

    Attributes:
        stage: Last stage begun: "build", "compile" or "done".
        error: Text of the exception; "" for none.
        values: Fields of a `Compiled`.
    """

    stage: str
    error: str
    values: dict[str, Any]


def environment(target: Devices, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the worker: no accelerator, and the CPU devices of a target.

    Args:
        target: Devices.
        base: The caller's environment.
    """
    kept = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)}
    flags = [flag for flag in kept.get("XLA_FLAGS", "").split() if not flag.startswith(_FORCED)]
    if target.kind.platform == "cpu":
        flags.append(f"{_FORCED}={target.count}")
    return kept | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "XLA_FLAGS": " ".join(flags),
        # Its seconds are a result, and a cached CPU program with collectives may be wrong.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # A worker takes no TPU, so it may run beside what does, and beside another worker.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
    }


def target_devices(target: Devices) -> list[Any]:
    """Returns JAX's devices of a target: absent ones, or the host's CPU.

    Raises:
        RuntimeError: The compiler for the target is not installed, or refuses the sizes.
    """
    import jax
    from jax.experimental import topologies

    kind = target.kind
    if kind.platform == "cpu":
        return jax.devices("cpu")[: target.count]
    if kind.platform == "tpu":
        topology = SLICES[kind.name].topology
        name = f"{topology}:{'x'.join(map(str, target.chips))}"
        options: dict[str, Any] = {"num_slices": target.slices} if target.slices > 1 else {}
        if topology == "v4":
            options["chip_config_name"] = "megacore"  # one device per chip, as JAX shows them
    else:
        name = kind.name
        hosts = max(1, target.count // joined(kind))
        shape = f"1x{hosts}x{target.count // hosts}"
        options = {"target_config": target_config(kind), "topology": shape}
    modules, extra = _COMPILERS[kind.platform]
    if not any(map(_installed, modules)):
        raise RuntimeError(
            f"{kind.name} needs the compiler in {' or '.join(modules)}, got none of these; type "
            f"pip install '{extra}'"
        )
    try:
        return list(topologies.get_topology_desc(name, kind.platform, **options).devices)
    except Exception as error:
        raise RuntimeError(
            f"the compiler must know the sizes of the target, got {target} and {error}; write for "
            f"example devices('TPU v5e:4x4') or devices('NVIDIA H200 x 8')"
        ) from error


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def lowered(built: Any) -> Any:
    """Returns the `jax.stages.Lowered` of the built object.

    Raises:
        TypeError: It has neither `lower` nor `jit` and `args`.
    """
    if callable(getattr(built, "lower", None)):
        return built.lower()
    if callable(getattr(built, "jit", None)) and hasattr(built, "args"):
        return built.jit().lower(*built.args)
    if hasattr(built, "compile") and hasattr(built, "as_text"):
        return built  # lowered already
    raise TypeError(
        f"build must return an object with lower(), or with jit() and args, got "
        f"{type(built).__name__}; return jax.jit(step).lower(*shapes), or a trainer's "
        f"program(model, batch)"
    )


def main() -> None:
    """Reads a request, compiles it, and writes the answer."""
    threading.Thread(target=_end_with_caller, daemon=True).start()
    folder = Path(sys.argv[1])
    answer = folder / ANSWER
    try:
        _answer(pickle.loads((folder / REQUEST).read_bytes()), answer)
    except Exception as error:
        _write(answer, Answer("build", _told(error), {}))


def _end_with_caller() -> None:
    """Ends this process and those of its compiler when the caller has ended, in whatever way."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)  # a session of its own


def _answer(request: Request, answer: Path) -> None:
    present = target_devices(request.target)
    began = time.monotonic()
    built = request.build(present, **request.choice)
    program = lowered(built)
    values: dict[str, Any] = {"lower_s": time.monotonic() - began, "flops": _flops(built)}
    _write(answer, Answer("compile", "", values))
    platform = request.target.kind.platform
    options = {**(_GPU_OPTIONS if platform == "cuda" else {}), **request.options}
    dump = answer.parent / DUMP
    if platform == "tpu":
        # The text that jaxlib makes fails its own checks on some programs of a newer libtpu.
        options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True, **options}
    began = time.monotonic()
    try:
        compiled = program.compile(compiler_options=options or None)
    except Exception as error:
        _write(answer, Answer("compile", f"{type(error).__name__}: {error}", values))
        return
    values["compile_s"] = time.monotonic() - began
    values |= _memory(compiled)
    values |= _read(request.target, built, compiled, present, dump)
    _write(answer, Answer("done", "", values))


def _memory(compiled: Any) -> dict[str, int]:
    stats = compiled.memory_analysis()
    sizes = {
        name: int(getattr(stats, f"{name}_size_in_bytes"))
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    size = sizes.pop("generated_code")
    if not size:  # XLA:CPU and XLA:GPU do not say
        executable = compiled.runtime_executable()
        size = len(executable.serialize())
    return {f"{name}_bytes": n for name, n in sizes.items()} | {"executable_bytes": size}


def _read(
    target: Devices, built: Any, compiled: Any, present: list[Any], dump: Path
) -> dict[str, Any]:
    import jax
    import numpy as np

    files = sorted(dump.glob("*.after_optimizations.txt"), key=lambda f: f.stat().st_mtime)
    text = Text(files[-1].read_text() if files else compiled.as_text())
    mesh = getattr(built, "mesh", None) or _mesh(compiled)
    order = present if mesh is None else list(mesh.devices.flat)
    by_slice = target.slices > 1
    places = np.array(
        [device.slice_index if by_slice else device.process_index for device in order]
        if by_slice or target.kind.platform == "cuda"
        else [0] * len(order)
    )
    exchanged: dict[str, tuple[Traffic, ...]] = traffic(
        text.collectives(),
        {} if mesh is None else dict(mesh.shape),
        places,
        near={"tpu": "ici", "cuda": "nvlink", "cpu": "memory"}[target.kind.platform],
        local=by_slice,
    )
    gpu = launches_of(text)._asdict() if target.kind.platform == "cuda" else {}
    return gpu | {
        "collectives": exchanged,
        "unknown_loops": text.unknown_loops,
        "mesh": {} if mesh is None else {a: n for a, n in mesh.shape.items() if n > 1},
        "versions": {"jax": jax.__version__} | _compiler(target),
    }


def _mesh(compiled: Any) -> Any:
    """Returns the mesh of a program's arguments or results, None if no sharding has one."""
    import jax

    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    return next((s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)), None)


def _compiler(target: Devices) -> dict[str, str]:
    import importlib.metadata as metadata

    names = {"tpu": ("libtpu",), "cuda": ("jax-cuda13-plugin", "jax-cuda12-plugin"), "cpu": ()}
    versions = {}
    for name in names[target.kind.platform]:
        with contextlib.suppress(metadata.PackageNotFoundError):  # one of the plugins is enough
            versions[name] = metadata.version(name)
    return versions


def _flops(built: Any) -> float | None:
    """Returns the FLOPs of a step, recomputed ones too, if the built object counts them."""
    if not callable(getattr(built, "flops", None)):
        return None
    flops = built.flops()
    if isinstance(flops, int | float):
        return float(flops)
    return float(flops.model + flops.recomputed)


def _told(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).strip()


def _write(file: Path, answer: Answer) -> None:
    """Writes an answer whole, whenever this process may be killed."""
    partial = file.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(answer))
    os.replace(partial, file)


if __name__ == "__main__":
    main()
