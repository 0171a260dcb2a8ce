# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import pickle

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dovetail_data import Corrupt, hold_out, jsonl, parquet
from dovetail_data.held_out import number_of

RECORDS = [{"text": f"record {i}", "n": i * i} for i in range(40)]


def without_fives(record):
    return Corrupt("no fives, got one: leave it out") if record["n"] % 5 == 0 else record


def _source(tmp_path, records, name="a.jsonl"):
    texts = (r if isinstance(r, str) else json.dumps(r) for r in records)
    (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    return jsonl(tmp_path / name)


def _read(side):
    return [record for part in side.parts() for record in side.read(part)]


def test_every_record_is_on_one_side_and_a_new_one_moves_none(tmp_path):
    train, held = hold_out(_source(tmp_path, RECORDS), share=0.3)
    sides = _read(train), _read(held)
    assert sorted(r["n"] for side in sides for r in side) == [i * i for i in range(40)]
    assert 4 <= len(sides[1]) <= 20
    assert all(number_of(record) < 0.3 for record in sides[1])
    # In another order, file and company, and with a record twice.
    mixed = [*RECORDS[20:], {"text": "new", "n": -1}, *RECORDS[:20], RECORDS[3]]
    other = hold_out(_source(tmp_path, mixed, "b.jsonl"), share=0.3)
    numbers = {r["n"] for r in _read(other[1])} - {-1}
    assert numbers == {r["n"] for r in sides[1]}


def test_the_number_of_a_record_ignores_the_order_of_its_fields():
    assert number_of({"a": 1, "b": [2]}) == number_of({"b": [2], "a": 1})
    assert number_of({"a": 1}) != number_of({"a": 2})
    assert number_of({"a": [{"x": 1}]}) == number_of({"a": [{"x": 1, "y": None}], "b": None})
    numbers = [number_of({"i": i}) for i in range(1000)]
    assert 0.45 < np.mean(numbers) < 0.55  # uniform: the standard error is 0.009
    assert 0 <= min(numbers) < max(numbers) < 1


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_each_side_has_a_record_at_least(tmp_path, share):
    sides = hold_out(_source(tmp_path, RECORDS[:3]), share=share)
    assert sorted(len(_read(side)) for side in sides) == [1, 2]


@pytest.mark.parametrize(
    "lines, got", [([RECORDS[0]], "1 records, 1"), ([RECORDS[0]] * 3, "3 rec")]
)
def test_records_that_cannot_be_split_are_refused(tmp_path, lines, got):
    with pytest.raises(ValueError, match=rf"at least 2 different.*got {got}.*add records"):
        hold_out(_source(tmp_path, lines), share=0.5)


def test_a_share_is_between_0_and_1(tmp_path):
    with pytest.raises(ValueError, match=r"between 0 and 1: got share=5.0. Pass share=0.05"):
        hold_out(_source(tmp_path, RECORDS), share=5.0)


def test_sides_pickle_and_differ_in_their_fingerprints(tmp_path):
    source = _source(tmp_path, RECORDS)
    sides = hold_out(source, share=0.3)
    assert _read(pickle.loads(pickle.dumps(sides[0]))) == _read(sides[0])
    others = hold_out(source, share=0.2) + hold_out(source, share=0.3, form=without_fives)
    prints = [side.fingerprint for side in (*sides, *others)]
    assert len(set(prints)) == len(prints)


def test_stored_corpora_keep_their_fingerprint(tmp_path):
    records = [{"text": f"record {i}", "query": f"q {i}", "positive": f"p{i}"} for i in range(40)]
    assert [side.fingerprint for side in hold_out(_source(tmp_path, records), share=0.1)] == [
        "2c148b8830124717a55aeac47f0569dfe3ffdf6a839b6b0128097da229488f6f",
        "770fddf8fcaaf1552f1c54d02fd83cb777751c172cde2acb1eb250a98acd2d5c",
    ]


def test_damaged_records_are_among_those_to_train_on_and_named_by_line(tmp_path):
    lines = [RECORDS[1], "{broken", RECORDS[2], "", RECORDS[0], RECORDS[5], *RECORDS[6:9]]
    damaged = {}
    for side in hold_out(_source(tmp_path, lines), share=0.3, form=without_fives):
        for part in side.parts():
            for i, record in enumerate(side.read(part)):
                if isinstance(record, Corrupt):
                    damaged[side.locate(part, i)] = side.held_out
    # Line 2 is no JSON; lines 5 and 6 have n = 0 and n = 25. Line 4 is blank.
    assert damaged.keys() == {"a.jsonl:2", "a.jsonl:5", "a.jsonl:6"}
    assert damaged["a.jsonl:2"] is False


def test_parquet_has_the_sides_of_json_lines(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    lines = hold_out(_source(tmp_path, RECORDS), share=0.3)
    table = hold_out(parquet(tmp_path / "a.parquet"), share=0.3)
    assert [_read(side) for side in lines] == [_read(side) for side in table]
