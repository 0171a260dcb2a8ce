# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The memory assigned to a program by the compiler, and its buffers over time.

Arguments, constants and results keep their allocations. All other buffers share heaps. The compiler
records the order of placing and freeing.

Source: `BufferAssignmentProto` in xla/service/hlo.proto of the OpenXLA repository.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.program.shape import Shape
from dovetail_profile.wire import Damaged, Message

Kind = Literal["parameter", "output", "constant", "thread-local", "temporary"]

DEVICE, HOST = 0, 5  # memory spaces of layouts
# Flags of an allocation, by kind.
_FLAGS: Mapping[Kind, int] = {"parameter": 5, "output": 7, "constant": 12, "thread-local": 3}

_ALLOC, _FREE = 0, 1  # kinds of events; 2 is to share the memory of another buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Buffer:
    """A value in memory.

    Attributes:
        id: Number of the buffer.
        bytes: Size with padding.
        space: Memory space.
        instruction: The defining instruction; None if the module lacks it.
        index: Place in the instruction's result, if a tuple.
    """

    id: int
    bytes: int
    space: int
    instruction: Instruction | None
    index: tuple[int, ...]

    @property
    def name(self) -> str:
        """Instruction and place in its tuple: `while.5{1}`."""
        place = f"{{{','.join(map(str, self.index))}}}" if self.index else ""
        return (self.instruction.name if self.instruction else f"buffer {self.id}") + place

    @property
    def shape(self) -> Shape | None:
        """The shape; None if unknown."""
        shape = self.instruction.shape if self.instruction else None
        for i in self.index:
            shape = shape.elements[i] if shape and 0 <= i < len(shape.elements) else None
        return shape


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """A range of memory.

    Attributes:
        bytes: Size.
        space: Memory space.
        kind: First purpose in the order of `Kind`.
        is_output: Whether a result lies in it. A result in a parameter replaces the argument.
        buffers: Buffers in it, at any time.
        at_peak: Buffers alive at the peak of its use; the largest if unknown.
    """

    bytes: int
    space: int
    kind: Kind
    is_output: bool
    buffers: tuple[Buffer, ...]
    at_peak: tuple[Buffer, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Heap:
    """The use of a heap.

    Attributes:
        peak_bytes: Most live bytes at once.
        at_peak: Buffers alive at the first peak.
        instructions: Instruction of each placing or freeing. Empty if the compiler recorded only
            the peak.
        bytes: Live bytes after each event.
    """

    peak_bytes: int
    at_peak: tuple[Buffer, ...]
    instructions: tuple[str, ...] = ()
    bytes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Assignment:
    """The allocations of a program, and the heaps in each memory space."""

    allocations: tuple[Allocation, ...]
    heaps: Mapping[int, Sequence[Heap]]


def assignment_of(module: Module) -> Assignment:
    """Reads `module.buffers`. Raises ValueError if there are none, and Damaged."""
    if not module.buffers:
        raise ValueError(
            "memory needs the compiler's assignment of buffers to a program, and that of "
            f"{module.name!r} is not kept; traces have it, and programs that were compiled for a "
            "CPU or GPU: memory(jitted.lower(...).compile())"
        )
    message = Message(module.buffers)
    buffers = {x.integer(1): _buffer(x, module) for x in message.messages(1)}
    at_peak = {x.integer(1): x.integers(2) for x in message.messages(5)}
    allocations = tuple(_allocation(x, buffers, at_peak) for x in message.messages(3))
    heaps: dict[int, list[Heap]] = {}
    traced: set[int] = set()
    # The parts of one heap repeat its trace.
    traces = dict.fromkeys(tuple(map(bytes, x.views(1))) for x in message.messages(4))
    for trace in filter(None, traces):
        events = [Message(memoryview(event)) for event in trace]
        heap = _replayed(events, buffers)
        traced.update(event.integer(2) for event in events)
        heaps.setdefault(buffers[events[0].integer(2)].space, []).append(heap)
    for x in allocations:
        if x.kind == "temporary" and traced.isdisjoint(buffer.id for buffer in x.buffers):
            heap = Heap(sum(buffer.bytes for buffer in x.at_peak), x.at_peak)
            heaps.setdefault(x.space, []).append(heap)
    return Assignment(allocations, heaps)


def _buffer(message: Message, module: Module) -> Buffer:
    place = message.message(3)
    # Old files have the name alone.
    instruction = module.by_id.get(place.integer(4)) or module.instructions.get(place.text(2))
    size, space = message.integer(2), message.integer(4)
    return Buffer(message.integer(1), size, space, instruction, place.integers(3))


def _allocation(
    message: Message, buffers: Mapping[int, Buffer], at_peak: Mapping[int, Sequence[int]]
) -> Allocation:
    try:
        held = tuple(buffers[x.integer(1)] for x in message.messages(9))
        peak = tuple(buffers[number] for number in at_peak.get(message.integer(1), ()))
    except KeyError as error:
        raise Damaged(f"an allocation holds buffer {error.args[0]}, which is absent") from None
    kinds: list[Kind] = [kind for kind, flag in _FLAGS.items() if message.integer(flag)]
    return Allocation(
        bytes=message.integer(2),
        space=message.integer(8),
        kind=kinds[0] if kinds else "temporary",
        is_output=bool(message.integer(7)),
        buffers=held,
        at_peak=peak or tuple(sorted(held, key=lambda buffer: -buffer.bytes)[:1]),
    )


def _replayed(events: Sequence[Message], buffers: Mapping[int, Buffer]) -> Heap:
    """Repeats the placing and freeing of buffers. Sharing memory lengthens its owner's life."""
    owner: dict[int, int] = {}  # of each buffer, the one whose memory it shares
    users: dict[int, int] = {}  # of each owner, the buffers in its memory that are alive
    changes: list[tuple[int, bool]] = []  # owners that came to life, or died
    live, peak, changes_to_peak = 0, 0, 0
    sizes: list[int] = []
    for event in events:
        kind, number = event.integer(1), event.integer(2)
        if kind != _FREE:
            owner[number] = number if kind == _ALLOC else owner.get(event.integer(5), -1)
        memory = owner.get(number, -1)
        before = users.get(memory, 0)
        if memory not in buffers or (kind == _FREE and not before):
            raise Damaged(f"a heap uses buffer {number}, which is absent or not alive")
        users[memory] = after = before + (-1 if kind == _FREE else 1)
        if not before or not after:
            live += buffers[memory].bytes * (after - before)
            changes.append((memory, not before))
        if live > peak:
            peak, changes_to_peak = live, len(changes)
        sizes.append(live)
    alive: dict[int, None] = {}
    for memory, begins in changes[:changes_to_peak]:
        if begins:
            alive[memory] = None
        else:
            del alive[memory]
    names = tuple(event.text(4) for event in events)
    return Heap(peak, tuple(buffers[number] for number in alive), names, tuple(sizes))
