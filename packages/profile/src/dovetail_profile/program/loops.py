# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds of a loop, if the program fixes them."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from dovetail_profile.program.module import Instruction, Module

_LITERALS = {"s32": 4, "s64": 5, "u32": 6, "u64": 7}  # fields of LiteralProto
_SAME = frozenset({"bitcast", "convert", "copy", "reshape"})


class _Value(NamedTuple):
    """An integer: an element of the loop's state plus an offset, or the offset alone."""

    element: int | None
    offset: int


def trips(module: Module, loop: Instruction) -> int | None:
    """Returns the rounds of a `while`; None if they depend on values.

    XLA states them for most loops. Otherwise a counter with constant start, step and limit fixes
    them.
    """
    try:
        config = json.loads(loop.attributes.text(43) or "{}")
    except ValueError:
        config = {}
    if known := config.get("known_trip_count"):
        return int(known["n"])
    return _Loop(module, loop).rounds()


class _Loop:
    def __init__(self, module: Module, loop: Instruction) -> None:
        self._by_id, self._computations = module.by_id, module.computations
        self._initial = self._by_id[loop.operands[0]]
        self._body, self._condition = (self._computations[i].root for i in loop.called)

    def rounds(self) -> int | None:
        test, arguments = self._condition, None
        while test.opcode == "fusion":
            arguments = [self._value(i, arguments) for i in test.operands]
            test = self._computations[test.called[0]].root
        if test.opcode != "compare" or self._body.opcode != "tuple":
            return None
        counter, limit = (self._value(i, arguments) for i in test.operands)
        if counter is None or limit is None or counter.element is None:
            return None
        start, stop = self._start(counter.element), limit.offset
        if limit.element is not None:
            fixed = self._start(limit.element)
            if fixed is None or self._grown(limit.element) != 0:
                return None
            stop += fixed
        step = self._grown(counter.element)
        if start is None or not step:
            return None
        start += counter.offset
        ends = {"LT": stop, "LE": stop + 1} if step > 0 else {"GT": stop, "GE": stop - 1}
        if (stop - start) % step == 0:
            ends["NE"] = stop
        end = ends.get(test.attributes.text(63))
        return None if end is None else max(-((start - end) // step), 0)

    def _start(self, element: int) -> int | None:
        """Returns the constant value of an element of the state before the first round."""
        if self._initial.opcode != "tuple":
            return None
        value = self._value(self._initial.operands[element], None)
        return value.offset if value and value.element is None else None

    def _grown(self, element: int) -> int | None:
        """Returns the constant change of an element of the state in a round."""
        value = self._value(self._body.operands[element], None)
        return value.offset if value and value.element == element else None

    def _value(self, number: int, arguments: Sequence[_Value | None] | None) -> _Value | None:
        """Returns the value of an instruction; in a fusion, of its arguments."""
        x = self._by_id[number]
        if x.opcode == "constant" and x.shape.dtype in _LITERALS:
            values = x.attributes.message(8).integers(_LITERALS[x.shape.dtype])
            return _Value(None, values[0]) if len(values) == 1 else None
        if x.opcode == "parameter" and arguments is not None:
            return arguments[x.attributes.integer(9)]
        if x.opcode == "get-tuple-element":
            state = self._by_id[x.operands[0]]
            is_state = state.opcode == "parameter" and arguments is None
            return _Value(x.attributes.integer(13), 0) if is_state else None
        if x.opcode in _SAME:
            return self._value(x.operands[0], arguments)
        if x.opcode == "fusion":
            inner = [self._value(i, arguments) for i in x.operands]
            return self._value(self._computations[x.called[0]].root.id, inner)
        if x.opcode in ("add", "subtract"):
            left, right = (self._value(i, arguments) for i in x.operands)
            if left and right and (left.element is None or right.element is None):
                if x.opcode == "add":
                    element = right.element if left.element is None else left.element
                    return _Value(element, left.offset + right.offset)
                if right.element is None:
                    return _Value(left.element, left.offset - right.offset)
        return None
