# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A write is continued with a mended source; its bytes are those of a write that never failed."""

import json
import re

import pytest

from dovetail_data import Bytes, Text, jsonl, text, write
from dovetail_data.writing.mending import Mended, mended, note
from dovetail_data.writing.workers import cut
from dovetail_data.writing.write import CorruptInputError

DAMAGED = "f5.jsonl"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Files f0 to f9 of ten lines, a chunk each; line 3 of f5 is damaged."""
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 1)
    (tmp_path / "in").mkdir()
    for i in range(10):
        lines = [json.dumps({"text": f"file {i} line {j}"}) for j in range(10)]
        (tmp_path / "in" / f"f{i}.jsonl").write_text("\n".join(lines) + "\n")
    damage(tmp_path / "in" / DAMAGED)
    return tmp_path / "in"


def damage(path, line=2):
    lines = path.read_text().splitlines(keepends=True)
    lines[line] = "{\n"
    path.write_text("".join(lines))


def mend(path, *, lines=10):
    path.write_text("".join(json.dumps({"text": f"mended {j}"}) + "\n" for j in range(lines)))


def written(source, directory, **options):
    return write(jsonl(source), directory, encoder=Text(Bytes()), shard_bytes=600, **options)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def fails(source, directory, **options):
    with pytest.raises(CorruptInputError, match=r"Mend them and call write\(\.\.\.\) again, or"):
        written(source, directory, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("lines, workers", [(1, 1), (10, 2), (300, 1)])
def test_a_mended_source_is_continued(source, tmp_path, caplog, lines, workers):
    fails(source, tmp_path / "c")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("*.npy")}
    assert len(before) == 2
    mend(source / DAMAGED, lines=lines)
    corpus = written(source, tmp_path / "c", workers=workers)
    assert contents(tmp_path / "c") == contents(written(source, tmp_path / "whole").directory)
    assert len(corpus) == 90 + lines
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path / 'c'} is continued with a mended source: changed are {DAMAGED}. 2 of 2 "
        "finished shards stay; the others and the rest of the source are written again."
    )


@pytest.mark.thorough
def test_shards_with_a_mended_file_are_written_again(source, tmp_path, caplog):
    damage(source / "f9.jsonl")
    fails(source, tmp_path / "c", max_corrupt=1)
    assert len(list((tmp_path / "c").glob("*.npy"))) == 4
    mend(source / DAMAGED, lines=2)
    mend(source / "f9.jsonl", lines=2)
    written(source, tmp_path / "c")
    assert contents(tmp_path / "c") == contents(written(source, tmp_path / "whole").directory)
    assert "changed are f5.jsonl, f9.jsonl. 2 of 4 finished" in caplog.records[0].getMessage()


@pytest.mark.thorough
def test_it_may_fail_again_and_again(source, tmp_path):
    damage(source / "f8.jsonl")
    for name in (DAMAGED, "f8.jsonl"):
        fails(source, tmp_path / "c")
        fails(source, tmp_path / "c")
        mend(source / name)
    written(source, tmp_path / "c")
    assert contents(tmp_path / "c") == contents(written(source, tmp_path / "whole").directory)


@pytest.mark.thorough
def test_records_may_be_left_out_after_a_failure(source, tmp_path):
    fails(source, tmp_path / "c")
    corpus = written(source, tmp_path / "c", max_corrupt=1)
    assert [bad.where for bad in corpus.corrupt] == ["f5.jsonl:3"]
    whole = written(source, tmp_path / "whole", max_corrupt=1)
    assert contents(tmp_path / "c") == contents(whole.directory)


def test_a_damaged_file_may_be_left_out(source, tmp_path):
    fails(source, tmp_path / "c")
    (source / DAMAGED).unlink()
    assert len(written(source, tmp_path / "c")) == 90
    assert contents(tmp_path / "c") == contents(written(source, tmp_path / "whole").directory)


@pytest.mark.parametrize(
    "change", ["another file", "a new file", "another encoder", "never failed"]
)
def test_any_other_change_is_refused(source, tmp_path, change):
    if change == "never failed":
        mend(source / DAMAGED)
        with pytest.raises(KeyboardInterrupt):
            written(source, tmp_path / "c", progress=interrupt)
    else:
        fails(source, tmp_path / "c")
    mend(source / DAMAGED, lines=3)
    if change == "another file":
        mend(source / "f7.jsonl")
    if change == "a new file":
        mend(source / "f99.jsonl")
    encoder = Text(Bytes(), field="txt") if change == "another encoder" else Text(Bytes())
    before = contents(tmp_path / "c")
    with pytest.raises(ValueError, match=r"must be continued with the same (source|encoder): got"):
        write(jsonl(source), tmp_path / "c", encoder=encoder, shard_bytes=600)
    assert contents(tmp_path / "c") == before


def interrupt(progress):
    if progress.parts == 7:
        raise KeyboardInterrupt


def test_a_kill_after_the_continuation_changes_nothing(source, tmp_path):
    fails(source, tmp_path / "c")
    mend(source / DAMAGED)
    with pytest.raises(KeyboardInterrupt):
        written(source, tmp_path / "c", progress=interrupt)
    written(source, tmp_path / "c")
    assert contents(tmp_path / "c") == contents(written(source, tmp_path / "whole").directory)


def test_the_command_says_what_it_takes_up_again(source, tmp_path, command, caplog):
    arguments = ("write", source, "--out", tmp_path / "c", "--shard-bytes", "600")
    code, _, err = command(*arguments)
    assert code == 3
    assert "Mend them and call write(...) again" in err
    mend(source / DAMAGED)
    assert command(*arguments)[0] == 0
    (record,) = caplog.records
    assert "changed are f5.jsonl. 2 of 2 finished shards stay" in record.getMessage()


class Unlisted:
    """A source of the user's own, without a list of files."""

    fingerprint = "mine"

    def parts(self):
        return []

    def read(self, part):
        return iter(())

    def locate(self, part, i):
        return ""


def test_the_first_changed_file_decides(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 2)  # two files to a chunk
    for i in range(8):
        (tmp_path / f"{i}.txt").write_text("a")
    source = text(tmp_path)
    noted = note(source, source.parts(), {3, 6})
    assert noted is not None
    assert {name: entry["first"] for name, entry in noted["files"].items()} == {
        "3.txt": 3,
        "6.txt": 6,
    }
    lines = [{"chunks": n, "slices": 0} for n in (1, 2, 3, 4)]
    for changed, kept in (("6.txt", 2), ("3.txt", 1)):
        (tmp_path / changed).write_text("b")
        now = text(tmp_path)
        files = tuple(sorted({"6.txt", changed}))
        expected = Mended(files=files, kept=kept)
        assert mended(now, cut(now.parts()), noted, lines) == expected
    lines = [{"chunks": 0, "slices": 3}, {"chunks": 1, "slices": 4}]
    assert mended(now, cut(now.parts()), noted, lines) == Mended(files=files, kept=1)
    assert mended(now, cut(now.parts()), None, lines) is None
    assert note(Unlisted(), source.parts(), {3}) is None
    assert mended(Unlisted(), [], noted, lines) is None


def test_the_note_is_no_part_of_a_finished_ledger(source, tmp_path):
    fails(source, tmp_path / "c")
    assert "damaged_files" in (tmp_path / "c" / "ledger.jsonl").read_text()
    mend(source / DAMAGED)
    written(source, tmp_path / "c")
    ledger = (tmp_path / "c" / "ledger.jsonl").read_text()
    assert not re.search("damaged_files|mended", ledger)
