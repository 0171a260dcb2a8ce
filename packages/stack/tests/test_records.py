# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import pickle

import numpy as np
import pytest

from dovetail_data import Bytes, Corrupt, Text, jsonl, records
from dovetail_stack.recipes.records import (
    RecordsError,
    check_fit,
    encode,
    longest,
    number_of,
    opened,
    opened_corpora,
    split,
)

RECORDS = [{"text": f"record {i}", "n": i * i} for i in range(40)]


def same(record):
    return record


def without_fives(record):
    return Corrupt("no fives, got one: leave it out") if record["n"] % 5 == 0 else record


def _file(tmp_path, lines, name="a.jsonl"):
    file = tmp_path / name
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{line}\n" for line in texts))
    return file


def _read(share):
    return [record for part in share.parts() for record in share.read(part)]


def test_every_record_is_on_one_side_and_a_new_one_moves_none(tmp_path):
    train, held = split(opened([_file(tmp_path, RECORDS)]), held_out=0.3, form=same)
    sides = _read(train), _read(held)
    assert sorted(r["n"] for side in sides for r in side) == [i * i for i in range(40)]
    assert 4 <= len(sides[1]) <= 20
    assert all(number_of(record) < 0.3 for record in sides[1])
    # In another order, file and company, and with a record twice.
    mixed = [*RECORDS[20:], {"text": "new", "n": -1}, *RECORDS[:20], RECORDS[3]]
    other = split(opened([_file(tmp_path, mixed, "b.jsonl")]), held_out=0.3, form=same)
    numbers = {r["n"] for r in _read(other[1])} - {-1}
    assert numbers == {r["n"] for r in sides[1]}


def test_the_number_of_a_record_ignores_the_order_of_its_fields():
    assert number_of({"a": 1, "b": [2]}) == number_of({"b": [2], "a": 1})
    assert number_of({"a": 1}) != number_of({"a": 2})
    assert number_of({"a": [{"x": 1}]}) == number_of({"a": [{"x": 1, "y": None}], "b": None})
    numbers = [number_of({"i": i}) for i in range(1000)]
    assert 0.45 < np.mean(numbers) < 0.55  # uniform: the standard error is 0.009
    assert 0 <= min(numbers) < max(numbers) < 1


@pytest.mark.parametrize("held_out", [1e-9, 1 - 1e-9])
def test_each_side_has_a_record_at_least(tmp_path, held_out):
    sides = split(opened([_file(tmp_path, RECORDS[:3])]), held_out=held_out, form=same)
    assert sorted(len(_read(side)) for side in sides) == [1, 2]


@pytest.mark.parametrize(
    "lines, got", [([RECORDS[0]], "1 records, 1"), ([RECORDS[0]] * 3, "3 rec")]
)
def test_records_that_cannot_be_split_are_refused(tmp_path, lines, got):
    with pytest.raises(RecordsError, match=rf"at least 2 different.*got {got}.*add records"):
        split(opened([_file(tmp_path, lines)]), held_out=0.5, form=same)


def test_shares_pickle_and_differ_in_their_fingerprints(tmp_path):
    source = opened([_file(tmp_path, RECORDS)])
    sides = split(source, held_out=0.3, form=same)
    assert _read(pickle.loads(pickle.dumps(sides[0]))) == _read(sides[0])
    others = split(source, held_out=0.2, form=same) + split(
        source, held_out=0.3, form=without_fives
    )
    prints = [side.fingerprint for side in (*sides, *others)]
    assert len(set(prints)) == len(prints)


def test_damaged_lines_count_as_training_records_and_are_named_by_line(tmp_path):
    lines = [RECORDS[1], "{broken", RECORDS[2], "", RECORDS[0], RECORDS[5], *RECORDS[6:9]]
    file = _file(tmp_path, lines)
    sides = split(opened([file]), held_out=0.3, form=without_fives)
    damaged = {}
    for side in sides:
        for part in side.parts():
            for i, record in enumerate(side.read(part)):
                if isinstance(record, Corrupt):
                    damaged[side.locate(part, i)] = side.held_out
    # Line 2 is no JSON; lines 5 and 6 have n = 0 and n = 25. Line 4 is blank.
    assert damaged.keys() == {"a.jsonl:2", "a.jsonl:5", "a.jsonl:6"}
    assert damaged["a.jsonl:2"] is False
    for most, named in ((0, "so far"), (2, r"got 3: mend them, or pass max_corrupt=3")):
        message = rf"(?s)max_corrupt={most} .*{named}.*a.jsonl:\d"
        with pytest.raises(ValueError, match=message) as caught:
            _encoded(sides, tmp_path / str(most), max_corrupt=most)
        assert caught.value.exit_code == 3
    corpora = _encoded(sides, tmp_path / "all", max_corrupt=3)
    shown = str(corpora)
    assert "3 left out as damaged:" in shown
    assert all(place in shown for place in damaged)
    assert len(corpora.train) + len(corpora.held_out) == 5


def _encoded(sides, directory, **options):
    return encode(sides, directory, encoder=Text(Bytes()), **options)


def test_corpora_hold_what_the_sides_read_and_open_again(tmp_path):
    sides = split(opened([_file(tmp_path, RECORDS)]), held_out=0.3, form=same)
    events = []
    options = {"progress": lambda name, event: events.append((name, event.documents))}
    corpora = _encoded(sides, tmp_path / "c", **options)
    for corpus, side in zip((corpora.train, corpora.held_out), sides, strict=True):
        texts = [Bytes().decode(corpus[i]["tokens"]) for i in range(len(corpus))]
        assert texts == [record["text"] for record in _read(side)]
    assert events[-1] == ("held_out", len(corpora.held_out))
    assert opened_corpora(tmp_path / "c").train.fingerprint == corpora.train.fingerprint
    assert str(corpora) == (
        f"{len(corpora.train)} records to train on, {len(corpora.held_out)} held out"
    )


@pytest.mark.parametrize("on", [0, 1])
def test_the_longest_record_is_named_whatever_its_side(tmp_path, on):
    file = _file(tmp_path, RECORDS)
    sides = split(opened([file]), held_out=0.3, form=same)
    record = _read(sides[on])[2]
    long = {**record, "text": "x" * 50}
    while (number_of(long) < 0.3) != bool(on):  # another text for the same side
        long["n"] += 1
    lines = [long if r == record else r for r in RECORDS]
    file = _file(tmp_path, lines, "long.jsonl")
    sides = split(opened([file]), held_out=0.3, form=same)
    corpora = _encoded(sides, tmp_path / "c")
    assert longest(corpora) == 52  # bos and eos
    check_fit(corpora, sides, length=51, positions=99)
    place = f"long.jsonl:{lines.index(long) + 1}"
    with pytest.raises(RecordsError, match=rf"length=50 and 1 longer .*{place} of 51 .*length=51$"):
        check_fit(corpora, sides, length=50, positions=99)
    with pytest.raises(RecordsError, match=r"leave out those above the 50 positions"):
        check_fit(corpora, sides, length=50, positions=50)
    with pytest.raises(RecordsError, match=r"of 52 tokens: pass length=52"):
        check_fit(corpora, sides, length=51, positions=99, targets=False)


@pytest.mark.thorough
def test_parquet_and_compressed_files_have_the_same_records(tmp_path):
    import gzip

    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(_file(tmp_path, RECORDS).read_bytes()))
    for name in ("a.parquet", "a.jsonl.gz"):
        assert list(records(opened([tmp_path / name]))) == RECORDS
    plain = split(jsonl(tmp_path / "a.jsonl"), held_out=0.3, form=same)
    table = split(opened([tmp_path / "a.parquet"]), held_out=0.3, form=same)
    assert _read(plain[1]) == _read(table[1])


@pytest.mark.parametrize("names", [["a.txt"], ["a.jsonl", "b.parquet"]])
def test_files_of_other_kinds_or_of_several_are_refused(names):
    with pytest.raises(ValueError, match=rf"one kind, .jsonl.*got {names[0]}.*pass records="):
        opened(names)
