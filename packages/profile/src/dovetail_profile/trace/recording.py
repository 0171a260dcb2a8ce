# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A recording: the content of one trace, read on first use."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dovetail_profile.program.module import Module, module_of
from dovetail_profile.trace import gpu, tpu
from dovetail_profile.trace.compilations import Compilation, load_compilations
from dovetail_profile.trace.events import combinations
from dovetail_profile.trace.gpu import Kernels
from dovetail_profile.trace.operations import Operations, joined, of_cpu
from dovetail_profile.trace.space import Plane, Space
from dovetail_profile.trace.spans import Spans, spans_of
from dovetail_profile.wire import Damaged

_HOST_PLANE, _PROGRAMS, _TASK = "/host:CPU", "/host:metadata", "Task Environment"


class Recording:
    """The trace of one or several hosts.

    Args:
        spaces: The file of each host.
        hosts: Their names, in the same order.
        files: Their paths, for errors.
        notes: Sentences about the choice of the files.
    """

    def __init__(
        self,
        spaces: Sequence[Space],
        hosts: Sequence[str],
        *,
        files: Sequence[Path] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.spaces, self.hosts = tuple(spaces), tuple(hosts)
        self._files, self._notes = tuple(files), tuple(notes)

    def add_notes(self, notes: Sequence[str]) -> None:
        """Adds sentences to `notes`, before their first use."""
        self._notes += tuple(notes)

    @functools.cached_property
    def operations(self) -> Operations:
        """The runs of instructions on all devices."""
        with self._naming_files():
            return joined([x for host, plane in self._planes() for x in self._of(plane, host)])

    @functools.cached_property
    def kernels(self) -> Kernels:
        """The runs of kernels on GPUs, with registers, blocks and occupancy."""
        with self._naming_files():
            return gpu.kernels_of([x for x in self._planes() if x[1].name.startswith(gpu.PREFIX)])

    @functools.cached_property
    def spans(self) -> Spans:
        """Activities of the threads of the hosts."""
        with self._naming_files():
            lines = [(x, host) for host, plane in self._planes(_HOST_PLANE) for x in plane.lines]
            return Spans.joined([spans_of(line, host) for line, host in lines])

    @functools.cached_property
    def modules(self) -> Mapping[tuple[int, int], Module]:
        """The programs by the index of the host and the number of the program."""
        modules = {}
        with self._naming_files():
            for host, plane in self._planes(_PROGRAMS):
                for number, (_, values) in plane.kinds.items():
                    hlo, program = values.get("Hlo Proto"), values.get("program_id", number)
                    if isinstance(hlo, bytes) and isinstance(program, int):
                        modules[host, program] = module_of(hlo)
        return modules

    @functools.cached_property
    def compilations(self) -> Mapping[int, Sequence[Compilation]]:
        """Compilations kept by the captures, by the index of the host."""
        kept = {host: load_compilations(file) for host, file in enumerate(self._files)}
        return {host: rows for host, rows in kept.items() if rows is not None}

    @functools.cached_property
    def start_ns(self) -> tuple[int | None, ...]:
        """The start of the trace of each host, in Unix nanoseconds; None: unknown."""
        tasks = [space.plane(_TASK) for space in self.spaces]
        starts = [plane.stats.get("profile_start_time") if plane else None for plane in tasks]
        return tuple(start if isinstance(start, int) else None for start in starts)

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """Sentences about gaps in the trace, with remedies."""
        notes = list(self._notes)
        for host, space in zip(self.hosts, self.spaces, strict=True):
            notes += [f"The profiler of {host} reported: {text}" for text in space.notes]
        if not len(self.operations):
            notes.append(
                "The trace has no run of an instruction. Within the capture, run the program and "
                "wait for its results (jax.block_until_ready)."
            )
        return (*notes, *self._without_program(), *self._without_instruction())

    def _without_program(self) -> Iterator[str]:
        runs = self.operations
        first, place = combinations(runs.host, runs.program)
        keys = zip(runs.host[first].tolist(), runs.program[first].tolist(), strict=True)
        missing = np.array([key[1] >= 0 and key not in self.modules for key in keys], bool)[place]
        if missing.any():
            share = runs.self_ps[missing].sum() / max(1, runs.self_ps.sum())
            yield (
                f"{missing.sum():,} runs of instructions, {share:.1%} of the time of devices, are "
                "of programs that the trace does not hold: they have no source, scope or cost. On "
                "a CPU they came from JAX's persistent cache: trace with dovetail_profile.capture, "
                "which adds them, or without a cache. On other devices a compilation for the CPU "
                "can remove them (jax-ml/jax#37533): trace in a process without one."
            )

    def _without_instruction(self) -> Iterator[str]:
        kernels = self.kernels
        columns = kernels.host, kernels.program, kernels.instruction
        first, place = combinations(*columns)
        keys = zip(*(column[first].tolist() for column in columns), strict=True)
        lost = np.array([not self._is_named(*key) for key in keys], bool)[place]
        if lost.any():
            share = kernels.duration_ps[lost].sum() / max(1, kernels.duration_ps.sum())
            yield (
                f"{lost.sum():,} kernels, {share:.1%} of the time of kernels, have no instruction: "
                "tables of instructions have them under their own names, without source, scope or "
                "cost. Kernels in command buffers are traced so (openxla/xprof#3070). To name "
                "them, start the program with XLA_FLAGS=--xla_gpu_enable_command_buffer= (nothing "
                "after the last =); it then launches each kernel by itself."
            )

    def _is_named(self, host: int, program: int, instruction: int) -> bool:
        """Whether a kernel's instruction is its own, not the call of a command buffer."""
        module = self.modules.get((host, program))
        if instruction < 0 or module is None:
            return instruction >= 0
        known = module.instructions.get(self.kernels.names[instruction])
        return known is not None and known.opcode != "call"

    def _planes(self, name: str = "") -> Iterator[tuple[int, Plane]]:
        """Yields the planes of a name, or all, each with the index of its host."""
        for host, space in enumerate(self.spaces):
            for plane in space.planes:
                if name in ("", plane.name):
                    yield host, plane

    def _of(self, plane: Plane, host: int) -> list[Operations]:
        """Returns the runs of a device, by stream; none for other planes."""
        if plane.name == _HOST_PLANE:
            return of_cpu(plane.lines, host, functools.partial(self._inner, host))
        if plane.name.startswith(gpu.PREFIX):
            return gpu.of_gpu(plane, host)
        return tpu.of_tpu(plane, host) if tpu.PLANE.fullmatch(plane.name) else []

    def _inner(self, host: int, program: int, name: str) -> set[str]:
        """Returns the names of the instructions in the computations called by an instruction."""
        module = self.modules.get((host, program))
        instruction = module.instructions.get(name) if module else None
        if module is None or instruction is None:
            return set()
        return {x.name for i in instruction.called for x in module.computations[i].instructions}

    @contextlib.contextmanager
    def _naming_files(self) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            files = ", ".join(map(str, self._files or self.hosts))
            raise Damaged(f"a trace must be whole, got damage in {files}: {error}") from None
