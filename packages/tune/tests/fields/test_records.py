# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import errno
import os

import numpy as np
import pytest

from dovetail_tune.fields.records import Column, Origin, Records

LENGTH = 5
IDS = Column(name="top_ids", dtype="<i4", per_token=True, shape=(3,))
LOGPS = Column(name="top_logps", dtype="<f4", per_token=True, shape=(3,))
SCALE = Column(name="top_scale", dtype="<f4", per_token=False)
ORIGIN = Origin(columns=(IDS, LOGPS, SCALE), scorer="top 3", model={"a.kernel": "01", "b": "02"})


def _rows(*numbers, length=LENGTH):
    rows = {}
    for number in numbers:
        rng = np.random.default_rng(number)
        bits = rng.integers(0, 2**32, (length, 3), dtype=np.uint32)  # any bits, NaN too
        rows[rng.bytes(16)] = {
            "top_ids": rng.integers(-9, 9, (length, 3)).astype(np.int32),
            "top_logps": bits.view(np.float32),
            "top_scale": np.float32(rng.normal()).reshape(()),
        }
    return rows


def _same(records, rows, *, length=LENGTH):
    for key, arrays in rows.items():
        values = records.get(key, length=length)
        assert set(values) == set(arrays)
        for name, x in arrays.items():
            assert (values[name].dtype, values[name].shape) == (x.dtype, x.shape)
            assert values[name].tobytes() == x.tobytes()


@pytest.mark.parametrize("kept", [True, False])
def test_arrays_come_back_bit_for_bit(tmp_path, kept):
    rows, other = _rows(1, 2, 3), _rows(4)
    records = Records(tmp_path if kept else None, ORIGIN)
    records.add(rows, length=LENGTH)
    records.add(other, length=LENGTH)
    assert len(records) == 4
    _same(records, rows | other)
    records.close()
    if kept:
        again = Records(tmp_path, ORIGIN)
        assert len(again) == 4
        _same(again, rows | other)
        again.close()


def test_rows_of_several_lengths_have_a_file_each(tmp_path):
    with_five, with_two = _rows(1, 2), _rows(3, length=2)
    records = Records(tmp_path, ORIGIN)
    records.add(with_five, length=LENGTH)
    records.add(with_two, length=2)
    records.close()
    assert len(list(tmp_path.iterdir())) == 2
    again = Records(tmp_path, ORIGIN)
    _same(again, with_five)
    _same(again, with_two, length=2)
    again.close()


def test_nothing_is_written_for_no_rows(tmp_path):
    records = Records(tmp_path / "new", ORIGIN)
    records.add({}, length=LENGTH)
    records.close()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_cut_anywhere_has_its_whole_records(tmp_path):
    rows = _rows(1, 2)
    records = Records(tmp_path / "whole", ORIGIN)
    records.add(rows, length=LENGTH)
    records.close()
    (file,) = (tmp_path / "whole").iterdir()
    content = file.read_bytes()
    header = content.index(b"\n") + 1
    size = (len(content) - header) // 2
    assert header + 2 * size == len(content)
    for end in [0, 1, header - 1, *range(header, len(content) + 1, 13), len(content) - 1]:
        folder = tmp_path / str(end)
        folder.mkdir()
        (folder / file.name).write_bytes(content[:end])
        cut = Records(folder, ORIGIN)
        whole = max(0, end - header) // size
        assert len(cut) == whole, end
        _same(cut, dict(list(rows.items())[:whole]))
        cut.add(rows, length=LENGTH)  # into another file: this one may end in a part of a record
        cut.close()
        mended = Records(folder, ORIGIN)
        assert len(mended) == 2
        _same(mended, rows)
        mended.close()


def test_a_flipped_bit_drops_its_record_with_a_warning(tmp_path):
    rows = _rows(1, 2, 3)
    records = Records(tmp_path, ORIGIN)
    records.add(rows, length=LENGTH)
    records.close()
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    size = (len(content) - content.index(b"\n") - 1) // 3
    for place in (-2 * size, -2 * size + 20, -size - 1):  # key, arrays and checksum of the second
        damaged = bytearray(content)
        damaged[place] ^= 4
        file.write_bytes(damaged)
        message = r"must have their checksums, got 1 damaged of 3; .* computed again"
        with pytest.warns(UserWarning, match=message):
            again = Records(tmp_path, ORIGIN)
        first, _, third = rows
        assert len(again) == 2
        _same(again, {key: rows[key] for key in (first, third)})
        again.close()


def test_a_full_disk_loses_no_earlier_record_and_no_later_one(tmp_path, monkeypatch):
    first, second, third = _rows(1), _rows(2), _rows(3)
    records = Records(tmp_path, ORIGIN)
    records.add(first, length=LENGTH)
    write = os.write

    def full(descriptor, content):
        if len(content) > 30:
            return write(descriptor, bytes(content)[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda d, c: full(d, c) if len(c) <= 200 else write(d, c[:9]))
        with pytest.raises(OSError, match="No space left"):
            records.add(second, length=LENGTH)
    assert len(records) == 1
    records.add(third, length=LENGTH)
    _same(records, first | third)
    records.close()
    again = Records(tmp_path, ORIGIN)
    _same(again, first | third)
    assert len(again) == 2
    again.close()


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write, rows = os.write, _rows(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
        records = Records(tmp_path, ORIGIN)
        records.add(rows, length=LENGTH)
        records.close()
    again = Records(tmp_path, ORIGIN)
    _same(again, rows)
    again.close()


def test_two_writers_share_a_folder(tmp_path):
    a, b = Records(tmp_path, ORIGIN), Records(tmp_path, ORIGIN)
    first, second = _rows(1), _rows(2)
    a.add(first, length=LENGTH)
    b.add(second, length=LENGTH)
    a.close()
    b.close()
    both = Records(tmp_path, ORIGIN)
    _same(both, first | second)
    both.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"a.kernel": "01", "b": "03"}},
            r"must come from this model, got top_ids-\w+.records of .* differs in b; pass another",
        ),
        (
            {"model": {f"layer.{i}": "01" for i in range(4)} | {"b": "02", "a.kernel": "01"}},
            r"differs in layer.0, layer.1, layer.2 and 1 more; pass another directory",
        ),
        ({"model": {"a.kernel": "01"}}, r"a model that differs in b; pass another directory"),
        ({"scorer": "top 4"}, r"must have the scorer top 4, got top 3 in .*; pass another dir"),
        (
            {"columns": (IDS, LOGPS)},
            r"must have the columns \[\['top_ids', .*, got \[\['top_ids', .*top_scale.*; pass",
        ),
    ],
)
def test_values_of_another_origin_are_refused(tmp_path, change, message):
    records = Records(tmp_path, ORIGIN)
    records.add(_rows(1), length=LENGTH)
    records.close()
    with pytest.raises(ValueError, match=message):
        Records(tmp_path, dataclasses.replace(ORIGIN, **change))


def test_other_names_share_a_folder(tmp_path):
    records = Records(tmp_path, ORIGIN)
    records.add(_rows(1), length=LENGTH)
    records.close()
    other = Records(tmp_path, Origin(columns=(SCALE,), scorer="x", model={}))
    assert len(other) == 0
    other.close()


@pytest.mark.parametrize("content", [b"hello\n", b"[1]\n", b'{"format": "other 1"}\n'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "top_ids-0.records").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"must begin with its header, got .*records with .*; move"
    ):
        Records(tmp_path, ORIGIN)
