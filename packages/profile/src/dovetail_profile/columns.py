# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wire format of Protocol Buffers: the fields of many messages at once, as arrays.

A trace holds hundreds of thousands of small messages. Python takes microseconds for each field of
each; here one NumPy operation takes the first fields of all messages, the next takes the second
fields, and so on.
"""

import dataclasses

import numpy as np

from dovetail_profile.wire import FIXED32, FIXED64, LENGTH, VARINT, Damaged

# Bytes after the data that may be looked at, though never used: a varint has at most ten.
PADDING = 16


@dataclasses.dataclass(frozen=True)
class Columns:
    """Fields of messages, one entry for each, in no particular order.

    Attributes:
        owner: int64 [fields], the index of the message.
        number: int64 [fields], the number of the field.
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
        """Returns the int64 of a field of each of `count` messages; 0 where it is absent."""
        mask = self.number == number
        values = np.zeros(count, np.int64)
        values[self.owner[mask]] = self.value[mask].view(np.int64)
        return values


def padded(data: bytes) -> np.ndarray:
    """Returns the bytes as an array that `scan` takes."""
    return np.frombuffer(data + bytes(PADDING), np.uint8)


def children(data: bytes, start: int, stop: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the messages of one repeated field, which has a number below 16.

    Args:
        data: The bytes.
        start: First position of the parent message.
        stop: The position after it.
        number: The number of the field.

    Returns:
        int64 [messages], first positions; int64 [messages], the positions after them.

    Raises:
        Damaged: A field does not fit.
    """
    wanted = number << 3 | LENGTH
    starts: list[int] = []
    sizes: list[int] = []
    at = start
    try:
        while at < stop:
            tag = data[at]
            at += 1
            kind = tag & 7
            if tag >= 0x80:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            if kind == LENGTH:
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, shift = size & 0x7F, 7
                    while True:
                        byte = data[at]
                        at += 1
                        size |= (byte & 0x7F) << shift
                        if byte < 0x80:
                            break
                        shift += 7
                if tag == wanted:
                    starts.append(at)
                    sizes.append(size)
                at += size
            elif kind == VARINT:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            else:
                raise Damaged(f"a field has wire type {kind}, which does not exist")
    except IndexError:
        at = stop + 1
    if at > stop:
        raise Damaged("the data end within a field")
    first = np.array(starts, np.int64)
    return first, first + np.array(sizes, np.int64)


def scan(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Columns:
    """Returns the fields of many messages.

    Args:
        data: uint8 [bytes], from `padded`.
        starts: int64 [messages], first positions.
        stops: int64 [messages], the positions after them, at most the size without padding.

    Returns:
        All fields of all messages.

    Raises:
        Damaged: A field does not fit in its message.
    """
    owners, numbers, values, ends = [], [], [], []
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
    if not owners:
        nothing = np.zeros(0, np.int64)
        return Columns(nothing, nothing, nothing.view(np.uint64), nothing)
    return Columns(*map(np.concatenate, (owners, numbers, values, ends)))


def varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the unsigned integers at many positions, and the positions after them.

    Raises:
        Damaged: An integer has more than ten bytes.
    """
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
    if kind not in (FIXED64, FIXED32):
        raise Damaged(f"a field has wire type {kind}, which does not exist")
    size = 8 if kind == FIXED64 else 4
    at = np.minimum(at, len(data) - PADDING)
    value = np.zeros(len(at), np.uint64)
    for i in range(size):
        value |= data[at + i].astype(np.uint64) << np.uint64(8 * i)
    return value, 0, at + size
