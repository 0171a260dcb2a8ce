# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives of a program: groups of devices, and bytes to send per device.

On a ring of n devices a device sends, of an array of S bytes,

    all-reduce                          2 (n - 1) / n S     S: the array
    all-gather, reduce-scatter          (n - 1) / n S       S: the array of the whole group
    all-to-all                          (n - 1) / n S       S: the part of a device
    collective-permute, -broadcast      S

No algorithm without reduction in the network sends less. Source of the factors: doc/PERFORMANCE.md
of NVIDIA's nccl-tests. Source of the fields: xla/service/hlo.proto and xla/xla_data.proto in the
OpenXLA repository.
"""

import dataclasses
import math
from collections.abc import Iterator

from dovetail_profile.program.arithmetic import opcodes
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.wire import Damaged, Message

KINDS = opcodes(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all collective-permute "
    "collective-broadcast"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Collective:
    """A collective of a program.

    Attributes:
        kind: One of `KINDS`.
        instruction: The communicating instruction.
        start: The running instruction: the same, or a fusion or asynchronous call around it.
        done: The instruction at its end; None if it is synchronous.
        group_size: Devices of the largest group; None: unknown.
        groups: Number of groups; None: unknown.
        bytes: Least bytes to send per device; None: unknown, or dependent on data.
    """

    kind: str
    instruction: Instruction
    start: Instruction
    done: Instruction | None
    group_size: int | None
    groups: int | None
    bytes: float | None


def collectives_of(module: Module) -> Iterator[Collective]:
    """Yields the collectives of a program."""
    everything = module.instructions.values()
    callers = [x for x in everything if x.opcode in ("fusion", "async-start")]
    around = {number: x for x in callers for number in x.called}
    ends = [x for x in everything if x.opcode.endswith(("-done", "-update"))]
    after = {number: x for x in ends for number in x.operands}
    for computation in module.computations.values():
        for x in computation.instructions:
            kind = x.opcode.removesuffix("-start")
            if kind in KINDS:
                start = around.get(computation.id, x)
                done = after.get(start.id)
                while done and done.opcode.endswith("-update"):
                    done = after.get(done.id)
                try:
                    size, groups = _groups(x)
                    sent = _bytes(kind, x, size)
                except (IndexError, ZeroDivisionError):
                    raise Damaged(f"{x.name!r} has groups or shapes that make no sense") from None
                yield Collective(kind, x, start, done, size, groups, sent)


def _groups(x: Instruction) -> tuple[int | None, int | None]:
    """Returns the size of the largest group, and the number of groups."""
    fields = x.attributes
    if 52 in fields:
        return _rings([(m.integer(1), m.integer(2)) for m in fields.messages(52)])
    iota = fields.message(92 if 92 in fields else 87)
    if 92 not in fields:  # once it was a part of the list
        iota = iota.message(2)
    if size := iota.integer(2):
        return size, iota.integer(1)
    if 93 in fields:
        mesh, axes = fields.message(93).message(1), fields.message(93).messages(2)
        sizes = [axis.integer(2) for axis in mesh.messages(1)]
        size = math.prod(axis.message(2).integer(2) or sizes[axis.integer(1)] for axis in axes)
        return size, math.prod(sizes) // size
    groups = fields.message(87).views(1) or fields.views(49)
    lengths = [len(Message(group).integers(1)) for group in groups]
    return (max(lengths), len(lengths)) if lengths else (None, None)


def _rings(pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """Returns the size of the largest set of connected devices, and the number of sets."""
    sets: dict[int, set[int]] = {}
    for source, target in pairs:
        union = sets.get(source, {source}) | sets.get(target, {target})
        sets.update(dict.fromkeys(union, union))
    sizes = [len(devices) for number, devices in sets.items() if number == min(devices)]
    return max(sizes, default=0), len(sizes)


def _bytes(kind: str, x: Instruction, n: int | None) -> float | None:
    if not n or kind == "ragged-all-to-all":
        return None
    # A start returns its operands too, and perhaps a context.
    with_operands = x.opcode in ("all-gather-start", "collective-permute-start")
    size = (x.shape.elements[1] if with_operands else x.shape).bytes
    if kind.startswith("collective"):
        return float(size) if n > 1 else 0.0
    if kind == "reduce-scatter":
        size *= n  # it returns one of n parts
    return (2 if kind == "all-reduce" else 1) * (n - 1) / n * size
