# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wire format of Protocol Buffers: the fields of many messages at once, as arrays.

A trace holds hundreds of thousands of small messages. One NumPy operation reads the first fields of
all messages, the next one their second fields, and so on.
"""

import dataclasses

import numpy as np

from dovetail_profile.wire import FIXED, LENGTH, VARINT, Damaged, Message, walk

# Bytes after the data, read though never used: a varint has at most ten.
PADDING = 16


@dataclasses.dataclass(frozen=True)
class Columns:
    """Fields of messages, in no particular order.

    Attributes:
        owner: int64 [fields], the index of the message.
        number: int64 [fields].
        value: uint64 [fields], an integer, the bits of a fixed one, or the first position of bytes.
        stop: int64 [fields], the position after the bytes; 0 for integers.
    """

    owner: np.ndarray
    number: np.ndarray
    value: np.ndarray
    stop: np.ndarray

    def of(self, *numbers: int) -> "Columns":
        """Returns the fields with one of some numbers."""
        mask = np.isin(self.number, numbers)
        return Columns(self.owner[mask], self.number[mask], self.value[mask], self.stop[mask])

    def integers(self, number: int, count: int) -> np.ndarray:
        """Returns an int64 field of each of `count` messages; 0 if it is absent."""
        mask = self.number == number
        values = np.zeros(count, np.int64)
        values[self.owner[mask]] = self.value[mask].view(np.int64)
        return values


def padded(data: bytes) -> np.ndarray:
    """Returns the bytes as an array for `scan`."""
    return np.frombuffer(data + bytes(PADDING), np.uint8)


def split(
    data: bytes, start: int, stop: int, number: int
) -> tuple[Message, np.ndarray, np.ndarray]:
    """Separates one large repeated field of a message from its other fields.

    Args:
        data: The bytes around the message.
        start: First position of the message.
        stop: The position after it.
        number: Number of the field. Its elements are messages.

    Returns:
        The other fields; first positions of the elements, int64 [elements]; the positions after
        them, int64 [elements].

    Raises:
        Damaged: A field does not fit.
    """
    view, others = memoryview(data), Message(memoryview(b""))
    starts: list[int] = []
    stops: list[int] = []
    for key, value, end in walk(data, start, stop):
        if key == number and end:
            starts.append(value)
            stops.append(end)
        else:
            others.add(key, view[value:end] if end else value)
    return others, np.array(starts, np.int64), np.array(stops, np.int64)


def scan(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Columns:
    """Returns all fields of many messages.

    Args:
        data: uint8 [bytes], from `padded`.
        starts: int64 [messages], first positions.
        stops: int64 [messages], the positions after them, at most the size without padding.

    Raises:
        Damaged: A field does not fit in its message.
    """
    nothing = np.zeros(0, np.int64)
    owners, numbers, values, ends = [nothing], [nothing], [nothing.view(np.uint64)], [nothing]
    owner, at, stop = np.arange(len(starts)), starts, stops
    while True:
        inside = at < stop
        if not inside.all():
            owner, at, stop = owner[inside], at[inside], stop[inside]
        if not len(owner):
            break
        tag, at = varints(data, at)
        if (tag < 8).any():
            raise Damaged("a field has number 0, which does not exist")
        kind = (tag & np.uint64(7)).astype(np.int64)
        value = np.zeros(len(at), np.uint64)
        end = np.zeros(len(at), np.int64)
        for wire_type in np.flatnonzero(np.bincount(kind)).tolist():
            mask = kind == wire_type
            value[mask], end[mask], at[mask] = _values(data, at[mask], wire_type)
        if (at > stop).any():
            raise Damaged("a field does not fit in its message")
        owners.append(owner)
        numbers.append((tag >> np.uint64(3)).astype(np.int64))
        values.append(value)
        ends.append(end)
    return Columns(*map(np.concatenate, (owners, numbers, values, ends)))


def varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the unsigned integers at positions, and the positions after. Raises Damaged."""
    at = np.minimum(at, len(data) - PADDING)
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(more):
        if shift > 63:
            raise Damaged("an integer has more than ten bytes")
        byte = data[at[more] + shift // 7]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return value, after


def _values(
    data: np.ndarray, at: np.ndarray, kind: int
) -> tuple[np.ndarray, np.ndarray | int, np.ndarray]:
    """Returns values of one wire type, the ends of bytes, and the positions after them."""
    if kind == VARINT:
        value, after = varints(data, at)
        return value, 0, after
    if kind == LENGTH:
        size, first = varints(data, at)
        if (size > np.uint64(len(data))).any():
            raise Damaged("a field does not fit in its message")
        stop = first + size.astype(np.int64)
        return first.astype(np.uint64), stop, stop
    if kind not in FIXED:
        raise Damaged(f"a field has wire type {kind}, which does not exist")
    at = np.minimum(at, len(data) - PADDING)
    value = np.zeros(len(at), np.uint64)
    for i in range(FIXED[kind]):
        value |= data[at + i].astype(np.uint64) << np.uint64(8 * i)
    return value, 0, at + FIXED[kind]
