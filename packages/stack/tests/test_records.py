# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes, Corrupt, Text, hold_out, records
from dovetail_data.held_out import number_of
from dovetail_stack.recipes.records import (
    RecordsError,
    check_fit,
    encode,
    opened,
    opened_corpora,
)

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


def test_damaged_lines_are_refused_or_left_out_by_line(tmp_path):
    lines = [RECORDS[1], "{broken", RECORDS[2], "", RECORDS[0], RECORDS[5], *RECORDS[6:9]]
    file = _file(tmp_path, lines)
    sides = hold_out(opened([file]), share=0.3, form=without_fives)
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


def _encoded(sides, directory, **options):
    return encode(sides, directory, encoder=Text(Bytes()), **options)


def test_corpora_hold_what_the_sides_read_and_open_again(tmp_path):
    sides = hold_out(opened([_file(tmp_path, RECORDS)]), share=0.3)
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
    sides = hold_out(opened([file]), share=0.3)
    record = _read(sides[on])[2]
    long = {**record, "text": "x" * 50}
    while (number_of(long) < 0.3) != bool(on):  # another text for the same side
        long["n"] += 1
    lines = [long if r == record else r for r in RECORDS]
    file = _file(tmp_path, lines, "long.jsonl")
    sides = hold_out(opened([file]), share=0.3)
    corpora = _encoded(sides, tmp_path / "c")
    lengths = [int(side.lengths.max()) for side in (corpora.train, corpora.held_out)]
    assert max(lengths) == 52  # bos and eos
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


@pytest.mark.parametrize("names", [["a.txt"], ["a.jsonl", "b.parquet"]])
def test_files_of_other_kinds_or_of_several_are_refused(names):
    with pytest.raises(ValueError, match=rf"one kind, .jsonl.*got {names[0]}.*pass records="):
        opened(names)
