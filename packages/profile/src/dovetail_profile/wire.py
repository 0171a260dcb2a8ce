# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wire format of Protocol Buffers: one message at a time.

Source: the encoding section of the Protocol Buffers documentation.
"""

import struct
from collections.abc import Iterator
from typing import NoReturn

VARINT, LENGTH = 0, 2
FIXED = {1: 8, 5: 4}  # wire types of a fixed number of bytes

Value = int | memoryview


class Damaged(ValueError):
    """Bytes are no message, or not all of it."""

    exit_code = 3  # of the command: damaged data


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns the unsigned integer at a position, and the position after it. Raises Damaged."""
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
            if shift > 63:
                raise Damaged("an integer has more than ten bytes")
    except IndexError:
        raise Damaged("the data end within an integer") from None


def signed(value: int) -> int:
    """Returns a varint as the int64 that was encoded."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yields number and value (unsigned integer or view) of each field. Raises Damaged."""
    for number, value, end in walk(data, 0, len(data)):
        yield number, data[value:end] if end else value


def walk(data: bytes | memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields the fields of a message: number, value, end.

    An integer has end 0. The value of bytes is their first position, the end the one after them.

    Args:
        data: The bytes around the message.
        start: First position of the message.
        stop: The position after it.

    Raises:
        Damaged: A field does not fit.
    """
    at = start
    try:
        while at < stop:
            tag, at = data[at], at + 1
            if tag >= 0x80:  # `varint` reads any, but a call for each would double the time
                tag, at = varint(data, at - 1)
            number, kind = tag >> 3, tag & 7
            if not number:
                raise Damaged("a field has number 0, which does not exist")
            if kind == VARINT:
                value, at = varint(data, at)
                yield number, value, 0
                continue
            if kind == LENGTH:
                size, at = data[at], at + 1
                if size >= 0x80:
                    size, at = varint(data, at - 1)
            elif kind in FIXED:
                size = FIXED[kind]
            else:
                raise Damaged(f"a field has wire type {kind}, which does not exist")
            if at + size > stop:
                raise Damaged(f"field {number} has {size} bytes, {stop - at} are left")
            yield number, at, at + size
            at += size
    except IndexError:
        at = stop + 1
    if at > stop:
        raise Damaged("the data end within a field")


class Message:
    """The fields of a message by number. Absent ones read as zero, empty, or an empty message."""

    def __init__(self, data: memoryview) -> None:
        self._values: dict[int, list[Value]] = {}
        for number, value in fields(data):
            self.add(number, value)

    def add(self, number: int, value: Value) -> None:
        """Appends a value to a field."""
        self._values.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def integer(self, number: int) -> int:
        """Returns the last int64 of a field, or 0."""
        value = self._values.get(number, [0])[-1]
        return signed(value) if isinstance(value, int) else _wrong(number)

    def integers(self, number: int) -> tuple[int, ...]:
        """Returns the int64 of a repeated field, packed or not."""
        values: list[int] = []
        for value in self._values.get(number, ()):
            if isinstance(value, int):
                values.append(signed(value))
                continue
            at = 0
            while at < len(value):
                packed, at = varint(value, at)
                values.append(signed(packed))
        return tuple(values)

    def double(self, number: int) -> float:
        """Returns the last double of a field, or 0."""
        value = self.bytes(number)
        return struct.unpack("<d", value)[0] if len(value) == 8 else 0.0

    def bytes(self, number: int) -> memoryview:
        """Returns the bytes of a field, or none."""
        value = self._values.get(number, [memoryview(b"")])[-1]
        return value if isinstance(value, memoryview) else _wrong(number)

    def text(self, number: int) -> str:
        """Returns the text of a field, or an empty one. Replaces bytes outside UTF-8."""
        return str(self.bytes(number), "utf-8", "replace")

    def texts(self, number: int) -> tuple[str, ...]:
        """Returns the texts of a repeated field."""
        return tuple(str(value, "utf-8", "replace") for value in self.views(number))

    def views(self, number: int) -> list[memoryview]:
        """Returns the bytes of each element of a repeated field."""
        values = self._values.get(number, [])
        return [v if isinstance(v, memoryview) else _wrong(number) for v in values]

    def message(self, number: int) -> "Message":
        """Returns the message of a field, or an empty one."""
        return Message(self.bytes(number))

    def messages(self, number: int) -> "list[Message]":
        """Returns the messages of a repeated field."""
        return [Message(view) for view in self.views(number)]


def _wrong(number: int) -> NoReturn:
    raise Damaged(f"field {number} has another wire type than the format says")
