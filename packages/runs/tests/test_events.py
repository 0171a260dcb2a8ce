# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from dovetail_runs import events

EVENT = {"event": "start", "time": "2026-01-02T03:04:05Z"}
LINE = json.dumps(EVENT).encode() + b"\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "launches.jsonl"


def test_events_come_back_in_order(path):
    for i in range(3):
        events.append(path, EVENT | {"i": i, "text": "größe\n"})
    assert events.read(path) == ([EVENT | {"i": i, "text": "größe\n"} for i in range(3)], [])
    assert path.read_bytes().count(b"\n") == 3


def test_the_time_is_in_utc():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", events.now())


def test_a_missing_file_and_an_empty_one_have_no_events(path):
    assert events.read(path) == ([], [])
    path.touch()
    assert events.read(path) == ([], [])


@pytest.mark.parametrize("before", [b"", LINE, LINE * 2])
def test_a_last_line_torn_at_any_byte_is_left_out_and_removed(path, before):
    for cut in range(len(LINE)):
        path.write_bytes(before + LINE[:cut])
        assert events.read(path) == ([EVENT] * before.count(b"\n"), [])
        events.append(path, EVENT)
        assert path.read_bytes() == before + LINE


@pytest.mark.parametrize(
    "line",
    [
        *["{", "[]", "7", "", '{"event": "start"}', '{"time": "t"}', "[" * 100_000],
        *['{"event": "start", "time": 5}', '{"event": ["end"], "time": "t"}'],
    ],
    ids=lambda line: line[:20],
)
def test_another_damaged_line_is_named(path, line):
    path.write_bytes(LINE + line.encode() + b"\n" + LINE)
    found, damage = events.read(path)
    assert found == [EVENT, EVENT]
    assert damage == [f"launches.jsonl:2: no event of a run: {line[:60]!r}"]


def test_bytes_that_are_no_text_are_named(path):
    path.write_bytes(b"\xff\x1b[2J\n")
    assert events.read(path) == ([], ["launches.jsonl:1: no event of a run: '\ufffd\\x1b[2J'"])


def test_an_event_that_json_lacks_leaves_the_file_as_it_was(path):
    with pytest.raises(TypeError):
        events.append(path, EVENT | {"x": object()})
    assert not path.exists()
