# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wire format of Protocol Buffers: one message at a time.

Traces and HLO modules are such messages. A reader of a few wire types needs no generated code, no
schema of one version, and meets unknown fields without loss.

Source: the encoding section of the Protocol Buffers documentation.
"""

import struct
from collections.abc import Iterator
from typing import NoReturn

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Value = int | memoryview


class Damaged(ValueError):
    """Bytes that are not a message, or not all of it."""

    exit_code = 3  # of the command: damaged data


def varint(data: memoryview, at: int) -> tuple[int, int]:
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
    """Yields the number and the value of each field, in order.

    A value is an unsigned integer, or a view of 8, 4 or any number of bytes. Raises Damaged.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise Damaged("a field has number 0, which does not exist")
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == LENGTH:
            size, at = varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise Damaged(f"a field has wire type {kind}, which does not exist")
        if at + size > end:
            raise Damaged(f"field {number} has {size} bytes, {end - at} are left")
        yield number, data[at : at + size]
        at += size


class Message:
    """The fields of one message by number. What is absent reads as zero, empty, or no message."""

    def __init__(self, data: memoryview) -> None:
        self._values: dict[int, list[Value]] = {}
        for number, value in fields(data):
            self._values.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def integer(self, number: int) -> int:
        """Returns the last int64 of a field, or 0."""
        value = self._values.get(number, [0])[-1]
        return signed(value) if isinstance(value, int) else _wrong(number)

    def integers(self, number: int) -> tuple[int, ...]:
        """Returns all int64 of a repeated field, packed or not."""
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
        """Returns the text of a field, or an empty one. Bytes that are not UTF-8 are replaced."""
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
