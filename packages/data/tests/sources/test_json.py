# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.sources._json import parse
from dovetail_data.sources.source import Corrupt

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.thorough
@given(record=st.dictionaries(st.text(max_size=4), VALUES, max_size=4), ascii_only=st.booleans())
@settings(max_examples=100, deadline=None)
def test_an_object_is_read_as_it_was_written(record, ascii_only):
    assert parse(json.dumps(record, ensure_ascii=ascii_only).encode()) == record


@given(
    place=st.sampled_from(['{"%s": 1}', '{"a": [1, "b", {"c": "x%sy"}]}', '{"a": {"%s": []}}']),
    surrogate=st.integers(0xD800, 0xDFFF),
    upper=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_lone_surrogate_anywhere_is_corrupt(place, surrogate, upper):
    escape = f"\\u{surrogate:04X}" if upper else f"\\u{surrogate:04x}"
    result = parse((place % escape).encode())
    assert result == Corrupt(
        f"a record must be Unicode without lone surrogates: got '\\u{surrogate:04x}'. "
        "Mend its \\ud800-\\udfff escapes or delete it."
    )


def test_pairs_of_surrogates_and_escaped_backslashes_are_text():
    assert parse(rb'{"a": "\ud83d\ude00", "b": "\\ud800"}') == {"a": "\U0001f600", "b": r"\ud800"}


def test_numbers_that_are_none_are_taken():
    result = parse(b'{"a": NaN, "b": -Infinity}')
    assert math.isnan(result["a"])
    assert result["b"] == -math.inf


@pytest.mark.parametrize(
    "line, error",
    [
        (b'{"a": ', "a record must be JSON: got Expecting value: line 1 column 7 (char 6). Mend"),
        (b'{"a": 1} {"b": 2}', "a record must be JSON: got Extra data"),
        (b'{"a": "\xff"}', "a record must be UTF-8: got byte 0xff at its byte 7. Convert"),
        (b'{"a": "\xed\xa0\x80"}', "a record must be UTF-8: got byte 0xed at its byte 7. Convert"),
        (b'["a"]', "a record must be a JSON object: got an array. Write each as an object"),
        (b'"a"', "a record must be a JSON object: got a string. Write each"),
        (b"7", "a record must be a JSON object: got a number. Write each"),
        (b"true", "a record must be a JSON object: got a boolean. Write each"),
        (b"null", "a record must be a JSON object: got null. Write each"),
        (b'{"b": {"a": 1, "a": 1}}', "JSON: got the name 'a' more than once in one object. Mend"),
        (
            b'{"a": %b}' % (b"9" * 5000),
            "a record must be JSON: got Exceeds the limit (4300 digits)",
        ),
        (b'{"a": ' + b"[" * 200_000, "must not nest deeper than Python's parser takes: got more"),
    ],
)
def test_what_is_no_such_object_is_corrupt(line, error):
    result = parse(line)
    assert isinstance(result, Corrupt)
    assert error in result.error
