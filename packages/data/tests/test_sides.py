# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes, Corpora, Corrupt, Text, hold_out, jsonl, write_sides

RECORDS = [{"text": f"record {i}", "n": i * i} for i in range(40)]


def without_fives(record):
    return Corrupt("no fives, got one: leave it out") if record["n"] % 5 == 0 else record


def _file(tmp_path, lines, name="a.jsonl"):
    file = tmp_path / name
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{line}\n" for line in texts))
    return file


def _read(side):
    return [record for part in side.parts() for record in side.read(part)]


def _encoded(sides, directory, **options):
    return write_sides(sides, directory, encoder=Text(Bytes()), **options)


def test_damaged_lines_are_refused_or_left_out_by_line(tmp_path):
    lines = [RECORDS[1], "{broken", RECORDS[2], "", RECORDS[0], RECORDS[5], *RECORDS[6:9]]
    file = _file(tmp_path, lines)
    sides = hold_out(jsonl(file), share=0.3, form=without_fives)
    # Line 2 is no JSON; lines 5 and 6 have n = 0 and n = 25. Line 4 is blank.
    for most, named in ((0, "so far"), (2, r"got 3: mend them, or pass max_corrupt=3")):
        message = rf"(?s)max_corrupt={most} .*{named}.*a.jsonl:\d"
        with pytest.raises(ValueError, match=message) as caught:
            _encoded(sides, tmp_path / str(most), max_corrupt=most)
        assert caught.value.exit_code == 3
    corpora = _encoded(sides, tmp_path / "all", max_corrupt=3)
    shown = str(corpora)
    assert "3 left out as damaged:" in shown
    assert all(f"a.jsonl:{line}: " in shown for line in (2, 5, 6))
    assert len(corpora.train) + len(corpora.held_out) == 5


def test_corpora_hold_what_the_sides_read_and_open_again(tmp_path):
    sides = hold_out(jsonl(_file(tmp_path, RECORDS)), share=0.3)
    events = []
    options = {"progress": lambda name, event: events.append((name, event.documents))}
    corpora = _encoded(sides, tmp_path / "c", **options)
    for corpus, side in zip((corpora.train, corpora.held_out), sides, strict=True):
        texts = [Bytes().decode(corpus[i]["tokens"]) for i in range(len(corpus))]
        assert texts == [record["text"] for record in _read(side)]
    assert events[-1] == ("held_out", len(corpora.held_out))
    assert Corpora.open(tmp_path / "c").train.fingerprint == corpora.train.fingerprint
    assert str(corpora) == (
        f"{len(corpora.train)} records to train on, {len(corpora.held_out)} held out"
    )


def test_the_longest_record_of_both_sides_is_named_by_its_line(tmp_path):
    lines = [*RECORDS[:7], {"text": "x" * 50, "n": 1}, *RECORDS[7:]]
    sides = hold_out(jsonl(_file(tmp_path, lines)), share=0.3)
    tokens, place = _encoded(sides, tmp_path / "c").longest(sides)
    assert tokens == 52  # bos and eos
    assert place.endswith("a.jsonl:8")
