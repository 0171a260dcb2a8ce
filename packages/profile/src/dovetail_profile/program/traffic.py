# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes that instructions read and write.

An instruction reads its operands once and writes its result. Slices, gathers and updates touch
the elements that they move, and updates leave the rest of the buffer in place. A fusion reads of
its operands the elements that its body needs, and keeps everything in between in registers.
"""

import math
from collections import defaultdict

from dovetail_profile.program.module import Computation, Instruction, Module


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Pointers, names and order: no bytes move.
_FREE = _words(
    "add-dependency after-all all-gather-done all-reduce-done async-done async-start async-update "
    "bitcast call collective-permute-done conditional constant copy-done domain "
    "get-dimension-size get-tuple-element opt-barrier optimization-barrier parameter partition-id "
    "recv-done replica-id send-done set-dimension-size tuple while"
)
# Each element of the result needs at most one of the first operand.
_SELECTING = frozenset({"broadcast", "dynamic-slice", "gather", "slice"})
# Elements of the result need many of the operands.
_MIXING = _words(
    "cholesky convolution custom-call dot fft ragged-dot reduce-window scaled-dot "
    "select-and-scatter sort triangular-solve"
)
_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
_IMMEDIATE = 8  # elements of a constant that a compiled loop holds in its code


class Traffic:
    """The bytes that the instructions of one module move. Custom calls are not among them."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def of(self, x: Instruction) -> float:
        """Returns the bytes of one run of an instruction."""
        result = x.shape.bytes
        if x.opcode in _FREE:
            return 0
        operands = [self._module.by_id[i].shape.bytes for i in x.operands]
        if x.opcode in _SELECTING and x.opcode != "broadcast":
            return 2 * result + sum(operands[1:])
        if x.opcode == "dynamic-update-slice":
            return 2 * operands[1] + sum(operands[2:])
        if x.opcode == "scatter":  # the old values are read too
            count = len(operands) // 2
            return 3 * sum(operands[count + 1 :]) + operands[count]
        if x.opcode == "fusion":
            return self._fusion(x)
        if x.opcode in ("copy-start", "send"):
            return operands[0] * (2 if x.opcode == "copy-start" else 1)
        if x.opcode == "recv":
            return x.shape.elements[0].bytes
        if x.opcode in ("all-gather-start", "collective-permute-start"):
            return sum(operands) + x.shape.elements[1].bytes  # the first holds the operands
        if x.opcode == "triangular-solve":  # half of the matrix is zero
            return operands[0] / 2 + operands[1] + result
        if x.opcode == "cholesky":
            return operands[0]
        return sum(operands) + result

    def _fusion(self, x: Instruction) -> float:
        body = self._module.computations[x.called[0]]
        total = 0.0
        in_place: set[int] = set()
        for root in self._outputs(body.root):
            update = self._updated(root)
            if update is None:
                total += root.shape.bytes
                continue
            in_place.add(update.id)
            count = len(update.operands) // 2
            written = update.operands[count + 1 :] if update.opcode == "scatter" else ()
            written = written or update.operands[1:2]
            total += sum(self._module.by_id[i].shape.bytes for i in written)
        needs = self._needs(body, in_place)
        for y in body.instructions:
            if y.opcode == "parameter" or (
                y.opcode == "constant" and math.prod(y.shape.dims) > _IMMEDIATE
            ):
                total += y.shape.bytes * min(needs[y.id], 1.0)
        return total

    def _outputs(self, root: Instruction) -> list[Instruction]:
        if root.opcode != "tuple":
            return [root]
        return [self._module.by_id[i] for i in root.operands]

    def _updated(self, root: Instruction) -> Instruction | None:
        """Returns the update of a parameter that is the result, or None."""
        update = self._behind(root)
        if update.opcode not in _UPDATES:
            return None
        target = self._behind(self._module.by_id[update.operands[0]])
        return update if target.opcode == "parameter" else None

    def _behind(self, x: Instruction) -> Instruction:
        while x.opcode in ("bitcast", "get-tuple-element"):
            x = self._module.by_id[x.operands[0]]
        return x

    def _needs(self, body: Computation, in_place: set[int]) -> dict[int, float]:
        """Returns the fraction of the elements of each instruction that the results need.

        Users that need different fractions are taken to need different elements.
        """
        by_id = self._module.by_id
        needs: dict[int, float] = defaultdict(float)
        for root in self._outputs(body.root):
            needs[root.id] = 1.0
        for x in reversed(body.instructions):
            need = min(needs[x.id], 1.0)
            if not need:
                continue
            inner = self._inner(x) if x.opcode == "fusion" else None
            for i, number in enumerate(x.operands):
                operand = by_id[number]
                if inner:
                    needs[number] += need * inner[i]
                elif x.opcode == "get-tuple-element":
                    size = max(operand.shape.bytes, 1) if operand.opcode == "parameter" else 0
                    needs[number] += need * x.shape.bytes / size if size else need
                else:
                    needs[number] += self._share(x, i, need, x.id in in_place)
        return needs

    def _inner(self, x: Instruction) -> list[float]:
        """Returns the fraction that a fusion within a fusion needs of each of its operands."""
        body = self._module.computations[x.called[0]]
        needs = self._needs(body, set())
        parameters = [y for y in body.instructions if y.opcode == "parameter"]
        parameters.sort(key=lambda y: y.attributes.integer(9))
        return [min(needs[y.id], 1.0) for y in parameters]

    def _share(self, x: Instruction, i: int, need: float, in_place: bool) -> float:
        """Returns the fraction of operand `i` that a fraction of a result needs."""
        if x.opcode in _UPDATES:
            if i:
                return 1.0
            whole = max(self._module.by_id[x.operands[0]].shape.bytes, 1)
            last = x.operands[-1] if x.opcode == "scatter" else x.operands[1]
            updated = min(self._module.by_id[last].shape.bytes / whole, 1.0)
            if x.opcode == "scatter":
                return updated if in_place else need
            return 0.0 if in_place else need * (1 - updated)
        if x.opcode in _SELECTING and i == 0:
            size = max(self._module.by_id[x.operands[0]].shape.size, 1)
            return min(need * x.shape.size / size, 1.0)
        return 1.0 if x.opcode in _MIXING else need
