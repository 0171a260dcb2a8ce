# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A compiled program: the HLO module after all passes of the compiler.

Source: xla/service/hlo.proto in the OpenXLA repository.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from dovetail_profile.program.frames import Frame, Frames
from dovetail_profile.program.scope import scope_of
from dovetail_profile.program.shape import Shape, shape_of
from dovetail_profile.wire import Message

_NONE = memoryview(b"")


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """An instruction.

    Attributes:
        name: Its name, unique in the module: `fusion.3`.
        opcode: As in HLO's text: "dot", "fusion", "all-reduce".
        shape: The shape of its result.
        id: Its number, unique in the module.
        operands: Numbers of the instructions whose results it takes.
        called: Numbers of the computations that it calls.
        op_name: The path that JAX gave: "jit(f)/layers.0/mlp/dot_general". May be empty.
        frame: Number of the innermost stack frame; 0 if there is none.
        attributes: All fields of `HloInstructionProto`, by number.
    """

    name: str
    opcode: str
    shape: Shape
    id: int
    operands: tuple[int, ...]
    called: tuple[int, ...]
    op_name: str
    frame: int
    attributes: Message

    @property
    def scope(self) -> str:
        """The module path in `op_name`: "layers.0.mlp". Empty if there is none."""
        return scope_of(self.op_name)


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """A sequence of instructions, operands before their users.

    Attributes:
        name: Its name.
        id: Its number, unique in the module.
        instructions: In an order in which they may run.
        root: The instruction whose result is the result.
        is_fused: Whether it is the body of a fusion.
    """

    name: str
    id: int
    instructions: tuple[Instruction, ...]
    root: Instruction
    is_fused: bool


class Module:
    """A program. Its computations are read when they are first asked for.

    Attributes:
        name: Its name: "jit_train_step".
        buffers: The bytes of its `BufferAssignmentProto`; empty if they were not kept.
    """

    def __init__(self, module: memoryview, buffers: memoryview = _NONE) -> None:
        self._message = Message(module)
        self.name = self._message.text(1)
        self.buffers = buffers

    @functools.cached_property
    def computations(self) -> Mapping[int, Computation]:
        """Its computations by number, callees before callers."""
        computations = map(_computation, self._message.messages(3))
        return {computation.id: computation for computation in computations}

    @property
    def entry(self) -> Computation:
        """The computation that runs."""
        return self.computations[self._message.integer(6)]

    @functools.cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """All instructions by name."""
        return {x.name: x for c in self.computations.values() for x in c.instructions}

    @functools.cached_property
    def by_id(self) -> Mapping[int, Instruction]:
        """All instructions by number."""
        return {x.id: x for x in self.instructions.values()}

    @functools.cached_property
    def frames(self) -> Frames:
        """The stack frames."""
        return Frames(self._message.message(17))

    def source(self, instruction: Instruction) -> Frame | None:
        """Returns the innermost line of source of an instruction; None if it has none.

        The compiler's own instructions take that of the root of their fusion, of the heaviest
        instruction in it, or of the loop or call around them.
        """
        for each in self._relatives(instruction):
            if frame := self.frames.get(each.frame):
                return frame
            meta = each.attributes.message(7)
            if file := meta.text(3):
                return Frame(file, "", meta.integer(4))
        return None

    def scope(self, instruction: Instruction) -> str:
        """Returns the module path of an instruction, taken as `source` is. May be empty."""
        names = (each.op_name for each in self._relatives(instruction))
        return scope_of(next(filter(None, names), ""))

    def _relatives(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields its body, then the loops and calls around it, the innermost first."""
        yield from self.body(instruction)
        around: Instruction | None = instruction
        while around := self._around.get(around.id):
            yield around

    @functools.cached_property
    def _around(self) -> Mapping[int, Instruction]:
        """The instruction that calls the computation of each instruction, by its number."""
        calls = ((x, number) for x in self.instructions.values() for number in x.called)
        return {y.id: x for x, number in calls for y in self.computations[number].instructions}

    def body(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields the instruction and, of a fusion, its root and then the others, heaviest first.

        Products weigh most, then the size of the result decides.
        """
        yield instruction
        if instruction.opcode == "fusion":
            for number in instruction.called:
                computation = self.computations[number]
                yield computation.root
                yield from sorted(computation.instructions, key=_weight, reverse=True)


def _weight(instruction: Instruction) -> tuple[bool, int]:
    return instruction.opcode in ("dot", "convolution", "custom-call"), instruction.shape.bytes


def module_of(hlo: bytes | memoryview) -> Module:
    """Reads a serialized `HloProto`. Raises Damaged."""
    message = Message(memoryview(hlo))
    return Module(message.bytes(1), message.bytes(3))


def _computation(message: Message) -> Computation:
    instructions = tuple(map(_instruction, message.messages(2)))
    root = message.integer(6)
    last = next((x for x in instructions if x.id == root), instructions[-1])
    return Computation(
        message.text(1), message.integer(5), instructions, last, bool(message.integer(7))
    )


def _instruction(message: Message) -> Instruction:
    meta = message.message(7)
    return Instruction(
        name=message.text(1),
        opcode=message.text(2),
        shape=shape_of(message.message(3)),
        id=message.integer(35),
        operands=message.integers(36),
        called=message.integers(38),
        op_name=meta.text(2),
        frame=meta.integer(15),
        attributes=message,
    )
