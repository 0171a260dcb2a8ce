# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes read and written by instructions.

An instruction reads its operands once and writes its result. Slices, gathers and updates touch only
the elements they move. A fusion reads the elements needed by its body and keeps the rest in
registers.
"""

import math
from collections import defaultdict

from dovetail_profile.program.arithmetic import opcodes
from dovetail_profile.program.module import Computation, Instruction, Module

# Pointers, names and order: no bytes move.
_FREE = opcodes(
    "add-dependency after-all all-gather-done all-reduce-done async-done async-start "
    "async-update bitcast call collective-permute-done conditional constant copy-done domain "
    "get-dimension-size get-tuple-element opt-barrier optimization-barrier parameter "
    "partition-id recv-done replica-id send-done set-dimension-size tuple while"
)
# Each element of the result is one of the first operand.
_SELECTING = frozenset({"dynamic-slice", "gather", "slice"})
_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
# An element of the result needs many of the operands.
_MIXING = opcodes(
    "cholesky convolution custom-call dot fft ragged-dot reduce-window scaled-dot "
    "select-and-scatter sort triangular-solve"
)
_IMMEDIATE = 8  # elements of a constant that a compiled loop holds in its code


class Traffic:
    """The bytes moved by the instructions of one module, custom calls excepted."""

    def __init__(self, module: Module) -> None:
        self._by_id, self._computations = module.by_id, module.computations

    def of(self, x: Instruction) -> float:
        """Returns the bytes of one run of an instruction."""
        if x.opcode in _FREE:
            return 0.0
        if x.opcode == "fusion":
            return self._fusion(x)
        result = x.shape.bytes
        operands = [self._by_id[i].shape.bytes for i in x.operands]
        moved = sum(operands) + result
        if x.opcode in _SELECTING:
            moved += result - operands[0]
        elif x.opcode == "dynamic-update-slice":
            moved += operands[1] - operands[0] - result
        elif x.opcode == "scatter":  # the old values are read too
            count = len(operands) // 2
            moved = operands[count] + 3 * sum(operands[count + 1 :])
        elif x.opcode in ("copy-start", "send"):  # their results hold the operand
            moved = operands[0] * (2 if x.opcode == "copy-start" else 1)
        elif x.opcode in ("all-gather-start", "collective-permute-start"):
            moved = sum(operands) + x.shape.elements[1].bytes
        elif x.opcode == "recv":
            moved = x.shape.elements[0].bytes
        elif x.opcode == "triangular-solve":  # half of the matrix is zero
            return moved - operands[0] / 2
        elif x.opcode == "cholesky":
            moved = operands[0]
        return float(moved)

    def _fusion(self, x: Instruction) -> float:
        body = self._computations[x.called[0]]
        total = 0.0
        in_place: set[int] = set()
        for root in self._outputs(body):
            update = self._behind(root.id)
            if update.opcode in _UPDATES and self._behind(update.operands[0]).opcode == "parameter":
                in_place.add(update.id)
                total += sum(self._by_id[i].shape.bytes for i in _updates(update))
            else:
                total += root.shape.bytes
        needs = self._needs(body, in_place)
        for y in body.instructions:
            large = y.opcode == "constant" and math.prod(y.shape.dims) > _IMMEDIATE
            if large or y.opcode == "parameter":
                total += round(y.shape.bytes * min(needs[y.id], 1.0))
        return total

    def _outputs(self, body: Computation) -> list[Instruction]:
        root = body.root
        return [self._by_id[i] for i in root.operands] if root.opcode == "tuple" else [root]

    def _behind(self, number: int) -> Instruction:
        """Returns the instruction before bitcasts and elements of tuples."""
        x = self._by_id[number]
        return self._behind(x.operands[0]) if x.opcode in ("bitcast", "get-tuple-element") else x

    def _needs(self, body: Computation, in_place: set[int]) -> dict[int, float]:
        """Returns the needed fraction of each instruction's elements, by number. It may exceed 1.

        Several users of fractions are taken to need different elements.
        """
        needs: dict[int, float] = defaultdict(float)
        needs |= {root.id: 1.0 for root in self._outputs(body)}
        for x in reversed(body.instructions):
            if need := min(needs[x.id], 1.0):
                inner = self._inner(x) if x.opcode == "fusion" else ()
                for i, number in enumerate(x.operands):
                    share = self._share(x, i, need, x.id in in_place)
                    needs[number] += need * inner[i] if inner else share
        return needs

    def _inner(self, x: Instruction) -> list[float]:
        """Returns the needed fraction of each operand of a fusion within a fusion."""
        body = self._computations[x.called[0]]
        needs = self._needs(body, set())
        parameters = [y for y in body.instructions if y.opcode == "parameter"]
        parameters.sort(key=lambda y: y.attributes.integer(9))
        return [min(needs[y.id], 1.0) for y in parameters]

    def _share(self, x: Instruction, i: int, need: float, in_place: bool) -> float:
        """Returns the needed fraction of operand `i` from that of the result."""
        operand = self._by_id[x.operands[i]]
        if x.opcode in _UPDATES:
            sizes = (self._by_id[number].shape.size for number in _updates(x))
            updated = min(sum(sizes) / max(x.shape.size, 1), 1.0)
            if i:
                return 1.0
            if x.opcode == "scatter":  # the old values are read too
                return updated if in_place else need
            return 0.0 if in_place else need * (1 - updated)
        if i == 0 and (x.opcode in _SELECTING or x.opcode == "broadcast"):
            return min(need * x.shape.size / max(operand.shape.size, 1), 1.0)
        if x.opcode == "get-tuple-element" and operand.opcode == "parameter":
            return need * x.shape.bytes / max(operand.shape.bytes, 1)
        return 1.0 if x.opcode in _MIXING else need


def _updates(x: Instruction) -> tuple[int, ...]:
    """Returns the operands written by an update."""
    return x.operands[1:2] if x.opcode != "scatter" else x.operands[len(x.operands) // 2 + 1 :]
