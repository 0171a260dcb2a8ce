# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON values become dataclasses, or are refused with their path."""

import dataclasses
from collections.abc import Mapping

import pytest

from dovetail_serve._decode import DecodeError, decode


@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...]
    name: str | None


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    table: Mapping[str, int | float | bool | str]
    ratio: float

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise ValueError("ratio is below 0")


def document(**changes):
    return {
        "inner": {"sizes": [3, 5], "name": None},
        "table": {"a": 1, "b": True, "c": 0.5, "d": "x"},
        "ratio": 2,
    } | changes


def test_each_annotation_is_decoded():
    decoded = decode(Outer, document())
    table = {"a": 1, "b": True, "c": 0.5, "d": "x"}
    assert decoded == Outer(inner=Inner(sizes=(3, 5), name=None), table=table, ratio=2)
    assert [type(value) for value in decoded.table.values()] == [int, bool, float, str]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "the document must be an object, got 7"),
        (document(ratio=-1.0), "the document is refused: ratio is below 0"),
        (document(ratio=True), "ratio must be a float, got True"),
        (document(ratio=float("inf")), "ratio must be finite, got inf"),
        (document(extra=1), "extra is not known"),
        (document(inner={"sizes": []}), "inner.name is missing"),
        (document(inner={"sizes": {}, "name": None}), "inner.sizes must be a list, got {}"),
        (document(inner={"sizes": [1, "2"], "name": None}), "inner.sizes.1 must be a int, got '2'"),
        (document(inner={"sizes": [], "name": 3}), "inner.name must be a"),
        (document(table=[]), "table must be an object, got []"),
        (document(table={"a": None}), "table.a must be a"),
        (document(table={"a\nb": None}), r"table.'a\\nb' must be a"),
        (document(inner={"sizes": [], "name": "\ud800"}), "inner.name must be text that UTF-8"),
        (document(table={"\ud800": 1}), "table must be text that UTF-8 can hold"),
    ],
)
def test_other_values_are_refused_with_their_path(value, message):
    with pytest.raises(DecodeError) as caught:
        decode(Outer, value)
    assert str(caught.value).startswith(message.replace("\\\\", "\\"))


def test_of_a_union_the_nearest_kind_gives_the_reason():
    @dataclasses.dataclass(frozen=True)
    class Optional:
        inner: Inner | None

    with pytest.raises(DecodeError, match=r"^inner\.sizes\.0 must be a int, got 'x'"):
        decode(Optional, {"inner": {"sizes": ["x"], "name": None}})


def test_a_large_or_deep_value_is_shortened():
    deep = []
    for _ in range(900):
        deep = [deep]
    for value in (deep, ["x" * 10**6] * 100, "y" * 10**6):
        with pytest.raises(DecodeError) as caught:
            decode(Outer, document(ratio=value))
        assert len(str(caught.value)) < 300
