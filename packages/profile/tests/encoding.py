# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes messages of the wire format, and traces: for devices that no machine of the tests has."""

import struct
from collections.abc import Mapping, Sequence

Field = tuple[int, int | float | str | bytes]
Stat = int | float | str | bytes
# The name, start and duration in picoseconds, and values of an event.
Event = tuple[str, int, int, Mapping[str, Stat]]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields: Field) -> bytes:
    """Encodes fields in order: an integer as varint, a float as double, else bytes."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return bytes(out)


class Plane:
    """A plane of a trace. Texts among the values are references, as the profiler writes them."""

    def __init__(self, name: str, **stats: Stat) -> None:
        self._keys: dict[str, int] = {}
        self._kinds: dict[str, tuple[int, list[Field]]] = {}
        self._lines: list[bytes] = []
        self._head: list[Field] = [(2, name), *((6, self._stat(k, v)) for k, v in stats.items())]

    def kind(
        self, name: str, stats: Mapping[str, Stat] | None = None, *, number: int | None = None
    ) -> "Plane":
        """Adds a kind of event, with values that all its events share."""
        fields: list[Field] = [(5, self._stat(key, value)) for key, value in (stats or {}).items()]
        self._kinds[name] = (number if number is not None else len(self._kinds) + 1, fields)
        return self

    def line(self, name: str, events: Sequence[Event], *, start_ns: int = 0) -> "Plane":
        """Adds a line."""
        fields: list[Field] = [(1, len(self._lines)), (2, name), (3, start_ns)]
        for kind, start, duration, stats in events:
            if kind not in self._kinds:
                self.kind(kind)
            values: list[Field] = [(4, self._stat(key, value)) for key, value in stats.items()]
            head: list[Field] = [(1, self._kinds[kind][0]), (2, start), (3, duration)]
            fields.append((4, message(*head, *values)))
        self._lines.append(message(*fields))
        return self

    def encode(self) -> bytes:
        lines: list[Field] = [(3, line) for line in self._lines]
        kinds: list[Field] = [
            (4, message((1, i), (2, message((1, i), (2, name), *fields))))
            for name, (i, fields) in self._kinds.items()
        ]
        keys: list[Field] = [
            (5, message((1, i), (2, message((1, i), (2, name))))) for name, i in self._keys.items()
        ]
        return message(*self._head, *lines, *kinds, *keys)

    def _key(self, name: str) -> int:
        return self._keys.setdefault(name, len(self._keys) + 1)

    def _stat(self, name: str, value: Stat) -> bytes:
        head: Field = (1, self._key(name))
        if isinstance(value, str):
            return message(head, (7, self._key(value)))
        if isinstance(value, bytes):
            return message(head, (6, value))
        return message(head, (4, value) if isinstance(value, int) else (2, value))


def trace(
    *planes: Plane, host: str = "", errors: Sequence[str] = (), warnings: Sequence[str] = ()
) -> bytes:
    """Encodes a trace file."""
    fields: list[Field] = [(1, plane.encode()) for plane in planes]
    fields += [(2, text) for text in errors]
    fields += [(3, text) for text in warnings]
    return message(*fields, *([(4, host)] if host else []))


def hlo(name: str, opcodes: Mapping[str, str], **called: Mapping[str, str]) -> bytes:
    """Encodes an HloProto: a module of instructions with these opcodes.

    Each of `called` are the instructions of the computation that the instruction of this name, with
    "_" for ".", calls.
    """
    ids = {x.replace("_", "."): i for i, x in enumerate(called, 2)}
    bodies = [(i, called[x]) for i, x in enumerate(called, 2)]
    number, fields = 0, []
    for i, body in [*bodies, (1, opcodes)]:
        instructions: list[Field] = []
        for instruction, opcode in body.items():
            number += 1
            calls: list[Field] = [(38, ids[instruction])] if instruction in ids else []
            head: list[Field] = [(1, instruction), (2, opcode), (35, number)]
            instructions.append((2, message(*head, *calls)))
        fields.append((3, message((1, f"c{i}"), *instructions, (5, i), (6, number))))
    return message((1, message((1, name), *fields, (6, 1))))
