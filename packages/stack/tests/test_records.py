# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes, Text, hold_out, records, write_sides
from dovetail_data.held_out import number_of
from dovetail_stack.recipes.options import RefusedError
from dovetail_stack.recipes.records import check_fit, opened

RECORDS = [{"text": f"record {i}", "n": i * i} for i in range(40)]


def _file(tmp_path, lines, name="a.jsonl"):
    file = tmp_path / name
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{line}\n" for line in texts))
    return file


def _read(side):
    return [record for part in side.parts() for record in side.read(part)]


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
    corpora = write_sides(sides, tmp_path / "c", encoder=Text(Bytes()))
    lengths = [int(side.lengths.max()) for side in (corpora.train, corpora.held_out)]
    assert max(lengths) == 52  # bos and eos
    check_fit(corpora, sides, length=51, positions=99)
    place = f"long.jsonl:{lines.index(long) + 1}"
    with pytest.raises(RefusedError, match=rf"length=50 and 1 longer .*{place} of 51 .*length=51$"):
        check_fit(corpora, sides, length=50, positions=99)
    with pytest.raises(RefusedError, match=r"leave out those above the 50 positions"):
        check_fit(corpora, sides, length=50, positions=50)
    with pytest.raises(RefusedError, match=r"of 52 tokens: pass length=52"):
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
