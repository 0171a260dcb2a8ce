# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The memory of a program on one device: its peak, the buffers alive then, and totals."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from dovetail_profile.program.buffers import DEVICE, HOST, Assignment, Buffer, Heap, assignment_of
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.table import Table
from dovetail_profile.tables.named import program_named
from dovetail_profile.tables.work import grouped
from dovetail_profile.trace.recording import Recording

if TYPE_CHECKING:
    import jax

_SHOWN = 10  # buffers in the printed form


@dataclasses.dataclass(frozen=True)
class BufferRow:
    """A buffer alive at the peak.

    Attributes:
        buffer: Its instruction, and its place in a tuple.
        opcode, shape: As in HLO's text.
        bytes: Size of the buffer.
        kind: "parameter", "constant", "output" or "temporary".
        source: File and line of the instruction.
        scope: The module path. Of a parameter, its path in the arguments.
    """

    buffer: str
    opcode: str
    shape: str
    bytes: int
    kind: str
    source: str
    scope: str


@dataclasses.dataclass(frozen=True)
class GroupRow:
    """Buffers at the peak with the same scope, source, kind or opcode.

    Attributes:
        name: The scope, source, kind or opcode.
        buffers, bytes: Number and size.
        share: Of the bytes at the peak.
    """

    name: str
    buffers: int
    bytes: int
    share: float


@dataclasses.dataclass(frozen=True)
class LiveRow:
    """Memory at a point of the program.

    Attributes:
        point: Number of the event: a buffer is placed or freed. 0 is the start.
        instruction, source: The cause, and its file and line.
        live_bytes: All buffers alive after the event.
    """

    point: int
    instruction: str
    source: str
    live_bytes: int


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sizes of the allocations, as `jax.stages.Compiled.memory_analysis` gives them.

    Attributes:
        arguments_bytes: `argument_size_in_bytes`.
        outputs_bytes: `output_size_in_bytes`, aliased ones included.
        aliased_bytes: `alias_size_in_bytes`: outputs in the memory of donated arguments.
        temporaries_bytes: `temp_size_in_bytes`, with gaps between buffers.
        constants_bytes: Constants, without a name in `memory_analysis`.
    """

    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    constants_bytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a program on one device.

    Attributes:
        program: Its name.
        peak_bytes: The most bytes alive at once, with arguments, constants and outputs.
        totals: Sizes of the allocations.
        at_peak: The buffers alive at the first peak, the largest first.
        over_time: Live bytes after each placement and release.
        notes: Limits of the numbers, in sentences.
    """

    program: str
    peak_bytes: int
    totals: Totals
    at_peak: Table[BufferRow]
    over_time: Table[LiveRow]
    notes: tuple[str, ...] = ()

    def by(self, column: Literal["scope", "source", "kind", "opcode"]) -> Table[GroupRow]:
        """Returns the buffers at the peak by the values of a column, the largest sum first."""
        pairs = zip(self.at_peak.column(column), self.at_peak.column("bytes"), strict=True)
        rows = []
        for name, buffers in grouped(pairs, lambda pair: pair[0]).items():
            size = sum(size for _, size in buffers)
            rows.append(GroupRow(name, len(buffers), size, size / max(self.peak_bytes, 1)))
        return Table(GroupRow, tuple(sorted(rows, key=lambda row: -row.bytes)))

    def __str__(self) -> str:
        totals = dataclasses.asdict(self.totals).items()
        lines = [
            f"{self.program}: {self.peak_bytes:,} bytes at the peak",
            ", ".join(f"{name.removesuffix('_bytes')} {size:,}" for name, size in totals),
            str(self.at_peak.top(_SHOWN)),
        ]
        if len(self.at_peak) > _SHOWN:
            lines.append(f"... and {len(self.at_peak) - _SHOWN} more")
        return "\n".join([*lines, *self.notes])


def memory(program: "Module | jax.stages.Compiled") -> Memory:
    """Returns the memory of a program on one device, as planned by its compiler.

    Raises:
        ValueError: The program has no assignment of buffers.
        Damaged: The assignment contradicts itself.

    Example:

        >>> import jax, jax.numpy as jnp
        >>> from dovetail_profile.tables.memory import memory
        >>> x = jnp.ones((256, 256))
        >>> memory(jax.jit(lambda x: (x @ x) @ x).lower(x).compile()).peak_bytes
        786432
    """
    if not isinstance(program, Module):
        from dovetail_profile._compat import module_of_compiled

        program = module_of_compiled(program)
    assignment = assignment_of(program)
    # Thread-local memory is a few scalars on the stack.
    stack = ("temporary", "thread-local")
    kept = [x for x in assignment.allocations if x.space == DEVICE and x.kind not in stack]
    heaps = sorted(assignment.heaps.get(DEVICE, ()), key=lambda heap: len(heap.bytes))
    base = sum(x.bytes for x in kept) + sum(heap.peak_bytes for heap in heaps[:-1])
    peak = base + sum(heap.peak_bytes for heap in heaps[-1:])
    largest = [(x, max(x.buffers, key=lambda buffer: buffer.bytes)) for x in kept if x.buffers]
    rows = [_row(program, buffer, x.kind, x.bytes) for x, buffer in largest]
    rows += [_row(program, b, "temporary", b.bytes) for heap in heaps for b in heap.at_peak]
    live = [LiveRow(0, "", "", base if heaps and heaps[-1].bytes else peak)]
    return Memory(
        program=program.name,
        peak_bytes=peak,
        totals=_totals(assignment),
        at_peak=Table(BufferRow, tuple(sorted(rows, key=lambda row: -row.bytes))),
        over_time=Table(LiveRow, (*live, *_events(program, base, heaps[-1:]))),
        notes=tuple(_notes(assignment)),
    )


def memory_named(recording: Recording, name: str) -> Memory:
    """Returns the memory of a program of a trace. KeyError for another name."""
    module, notes = program_named(recording, name)
    result = memory(module)
    return dataclasses.replace(result, notes=(*result.notes, *notes))


def _row(module: Module, buffer: Buffer, kind: str, size: int) -> BufferRow:
    x = buffer.instruction
    scope = x.scope if x else ""
    if x and x.opcode == "parameter" and "/" not in x.op_name:  # state['params'][0]
        scope = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", x.op_name)
    opcode, shape = x.opcode if x else "", str(buffer.shape or "")
    return BufferRow(buffer.name, opcode, shape, size, kind, _source(module, x), scope)


def _events(module: Module, base: int, heaps: Sequence[Heap]) -> Iterator[LiveRow]:
    for heap in heaps:
        for point, (name, size) in enumerate(zip(heap.instructions, heap.bytes, strict=True), 1):
            yield LiveRow(point, name, _source(module, module.instructions.get(name)), base + size)


def _source(module: Module, instruction: Instruction | None) -> str:
    return str((module.source(instruction) if instruction else None) or "")


def _totals(assignment: Assignment) -> Totals:
    device = [x for x in assignment.allocations if x.space != HOST]
    return Totals(
        arguments_bytes=sum(x.bytes for x in device if x.kind == "parameter"),
        outputs_bytes=sum(x.bytes for x in device if x.is_output),
        aliased_bytes=sum(x.bytes for x in device if x.kind == "parameter" and x.is_output),
        temporaries_bytes=sum(x.bytes for x in device if x.kind == "temporary"),
        constants_bytes=sum(x.bytes for x in device if x.kind == "constant"),
    )


def _notes(assignment: Assignment) -> Iterator[str]:
    heaps = assignment.heaps.get(DEVICE, ())
    if len(heaps) > 1:
        yield (
            "The compiler planned several heaps apart. Their peaks are added, though they may not "
            "coincide; over_time shows the one with the most events."
        )
    if heaps and not any(heap.bytes for heap in heaps):
        yield (
            "The order in which the compiler placed buffers is in traces of programs that did not "
            "come from a compilation cache; here it is absent, and over_time has one row."
        )
    for space in sorted({x.space for x in assignment.allocations} - {DEVICE}):
        size = sum(x.bytes for x in assignment.allocations if x.space == space)
        name = "of the host" if space == HOST else f"space {space} of the device"
        yield f"{size:,} bytes in the memory {name} are not part of the peak."
