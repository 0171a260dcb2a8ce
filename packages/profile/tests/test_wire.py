# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Messages, one at a time and very many at once: any bytes give fields or `Damaged`."""

import struct

import numpy as np
import pytest
from encoding import message
from encoding import varint as encoded
from hypothesis import given
from hypothesis import strategies as st

from dovetail_profile import columns
from dovetail_profile.wire import Damaged, Message, fields, signed, varint

NUMBERS = st.integers(1, 15) | st.integers(1, (1 << 29) - 1)
VALUES = (
    st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.binary(max_size=300)
)
MESSAGES = st.lists(st.tuples(NUMBERS, VALUES), max_size=8)


@given(st.integers(0, (1 << 64) - 1))
def test_an_integer_is_read_as_it_was_written(value: int) -> None:
    data = encoded(value)
    assert varint(memoryview(data + b"\x01"), 0) == (value, len(data))
    assert signed(value) == struct.unpack("<q", struct.pack("<Q", value))[0]


@given(MESSAGES)
def test_a_message_has_the_fields_that_were_written(written: list) -> None:
    read = list(fields(memoryview(message(*written))))
    assert [number for number, _ in read] == [number for number, _ in written]
    whole = Message(memoryview(message(*written)))
    for number, value in dict(written).items():  # the last of each number
        assert number in whole
        if isinstance(value, int):
            assert whole.integer(number) == value
        elif isinstance(value, float):
            assert whole.double(number) == value
        else:
            assert bytes(whole.bytes(number)) == value
            assert whole.text(number) == value.decode("utf-8", "replace")


def test_what_is_absent_is_empty_and_repeated_fields_keep_their_order() -> None:
    empty = Message(memoryview(b""))
    assert (empty.integer(1), empty.double(2), empty.text(3), empty.integers(4)) == (0, 0.0, "", ())
    assert 1 not in empty.message(1)
    data = message((1, 5), (1, encoded(6) + encoded(-1)), (2, "a"), (2, "b"), (3, message((1, 7))))
    whole = Message(memoryview(data))
    assert whole.integers(1) == (5, 6, -1)
    assert whole.texts(2) == ("a", "b")
    assert [part.integer(1) for part in whole.messages(3)] == [7]
    with pytest.raises(Damaged, match="field 2 has another wire type"):
        whole.integer(2)


@given(MESSAGES.filter(len))
def test_a_message_without_its_last_byte_is_damaged(written: list) -> None:
    with pytest.raises(Damaged):
        list(fields(memoryview(message(*written))[:-1]))


def test_an_integer_of_more_than_ten_bytes_is_damage() -> None:
    data = b"\x08" + b"\xff" * 10 + b"\x01"
    with pytest.raises(Damaged, match="ten bytes"):
        list(fields(memoryview(data)))
    with pytest.raises(Damaged, match="ten bytes"):
        scanned(data, [(0, len(data))])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_damaged(data: bytes) -> None:
    try:
        read = list(fields(memoryview(data)))
    except Damaged:
        return
    assert sum(len(v) for _, v in read if isinstance(v, memoryview)) <= len(data)


def scanned(data: bytes, bounds: list[tuple[int, int]]) -> list[list[tuple[int, int | bytes]]]:
    """The fields of each message, by `columns.scan`."""
    starts, stops = np.array(bounds, np.int64).reshape(-1, 2).T
    found = columns.scan(columns.padded(data), starts, stops)
    out: list[list[tuple[int, int | bytes]]] = [[] for _ in bounds]
    rows = zip(found.owner, found.number, found.value, found.stop, strict=True)
    for owner, number, value, stop in rows:
        out[owner].append((int(number), data[int(value) : stop] if stop else int(value)))
    return out


def plainly(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields by `wire.fields`, fixed ones as integers, as `columns.scan` gives them."""
    out: list[tuple[int, int | bytes]] = []
    at = 0
    for number, value in fields(memoryview(data)):
        tag, at = varint(memoryview(data), at)
        kind = tag & 7
        if kind == 0:
            _, at = varint(memoryview(data), at)
        elif kind == 2:
            size, at = varint(memoryview(data), at)
            at += size
        else:
            at += len(value)  # pyright: ignore[reportArgumentType] -- a view
        plain = int.from_bytes(value, "little") if kind in (1, 5) else value  # pyright: ignore
        out.append((number, plain if isinstance(plain, int) else bytes(plain)))
    return out


@given(
    st.lists(MESSAGES.map(lambda written: message(*written)) | st.binary(max_size=40), max_size=6)
)
def test_many_messages_are_read_as_one_by_one(pieces: list[bytes]) -> None:
    try:
        expected = [plainly(piece) for piece in pieces]
    except Damaged:
        expected = None
    stops = np.cumsum([len(piece) for piece in pieces]).tolist()
    bounds = list(zip([0, *stops[:-1]], stops, strict=True)) if pieces else []
    try:
        read = scanned(b"".join(pieces), bounds)
    except Damaged:
        read = None
    assert read == expected


@given(st.lists(st.binary(max_size=200), max_size=5), MESSAGES)
def test_children_are_the_elements_of_one_field(elements: list[bytes], others: list) -> None:
    others = [(number, value) for number, value in others if number != 4]
    data = message(*others, *((4, element) for element in elements), *others)
    _, starts, stops = columns.split(data, 0, len(data), 4)
    assert [data[a:b] for a, b in zip(starts, stops, strict=True)] == elements
    if data:
        with pytest.raises(Damaged):
            columns.split(data, 0, len(data) + 1, 4)


@given(st.binary(max_size=200))
def test_children_of_any_bytes_lie_within_them(data: bytes) -> None:
    try:
        _, starts, stops = columns.split(data, 0, len(data), 1)
    except Damaged:
        return
    assert all(0 <= a <= b <= len(data) for a, b in zip(starts, stops, strict=True))
