# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Splits with shards or rows missing, in each format and by each reader."""

import gzip
import itertools
import json

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data import array_record, arrow, hf_directory, jsonl, parquet, records

READERS = {"parquet": parquet, "jsonl": jsonl, "arrow": arrow, "array_record": array_record}


def write(path, numbers):
    """Writes a file of one record for each number, in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": numbers})
    text = "".join(json.dumps({"n": n}) + "\n" for n in numbers).encode()
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".array_record":
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for line in text.splitlines():
            writer.write(line)
        writer.close()
    else:
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def shards(directory, ending, numbers, *, total=3, split="train", digest=""):
    for i in numbers:
        name = f"{split}-{i:05d}-of-{total:05d}{digest.format(i=i)}.{ending}"
        write(directory / "data" / name, [i])


def readers(directory, ending):
    """All readers of a directory with files of this ending."""
    kind = ending.removesuffix(".gz")
    yield lambda: READERS[kind](directory)
    if kind != "array_record":
        yield lambda: hf_directory(directory)


ENDINGS = ("parquet", "jsonl", "arrow", "array_record", "jsonl.gz")
SUBSETS = [s for k in (1, 2) for s in itertools.combinations(range(3), k)]


class TestShards:
    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("present", SUBSETS)
    def test_that_are_missing_are_named(self, tmp_path, ending, present):
        shards(tmp_path, ending, present)
        absent = ", ".join(f"{i:05d}" for i in range(3) if i not in present)
        message = (
            rf"must have all of its shards: got {len(present)} of .*train's 3 in .*, without "
            rf"{absent}\. Fetch the data set again"
        )
        for read in readers(tmp_path, ending):
            with pytest.raises(ValueError, match=message):
                read()

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("first", [0, 1])
    @pytest.mark.parametrize("digest", ["", "-b513d9e388d5645{i}"])
    def test_that_are_all_there_are_read(self, tmp_path, ending, first, digest):
        shards(tmp_path, ending, range(first, first + 3), digest=digest)
        shards(tmp_path, ending, [0], total=1, split="test")
        for read in readers(tmp_path / "data", ending):
            assert {row["n"] for row in records(read())} >= set(range(first, first + 3))

    def test_of_two_sets_are_refused(self, tmp_path):
        shards(tmp_path, "parquet", range(3))
        shards(tmp_path, "parquet", range(2), total=2)
        for read in readers(tmp_path, "parquet"):
            message = r"must be of one set: got \['.*-of-00002.parquet', '.*-of-00003.parquet'\] in"
            with pytest.raises(ValueError, match=message):
                read()

    def test_of_one_number_are_refused(self, tmp_path):
        shards(tmp_path, "parquet", range(3), digest="-aaaaaaaa{i}")
        shards(tmp_path, "parquet", [1], digest="-bbbbbbbb{i}")
        for read in readers(tmp_path, "parquet"):
            with pytest.raises(ValueError, match=r"each shard once: got \['.*-aaaa.*', '.*-bbbb"):
                read()

    def test_of_another_split_are_not_asked_for(self, tmp_path):
        shards(tmp_path, "parquet", range(3))
        shards(tmp_path, "parquet", [0], split="test", total=2)
        assert len(list(records(hf_directory(tmp_path)))) == 3
        with pytest.raises(ValueError, match=r"got 1 of .*test's 2 in .*, without 00001\."):
            hf_directory(tmp_path, split="test")

    def test_may_be_chosen_by_a_list_or_a_pattern(self, tmp_path, caplog):
        shards(tmp_path, "parquet", [0, 1, 2])
        assert len(list(records(parquet(tmp_path, pattern="**/*-00001-of-*")))) == 1
        assert len(list(records(parquet(sorted((tmp_path / "data").iterdir())[:2])))) == 2
        assert caplog.messages == []
        (tmp_path / "data" / "train-00002-of-00003.parquet").unlink()
        assert len(list(records(parquet(sorted((tmp_path / "data").iterdir()))))) == 2
        (told,) = caplog.messages
        assert f"{tmp_path / 'data'} has 2 of the 3 shards of train; the others are not" in told
        readme = "---\nconfigs:\n- data_files: data/train-00000-*\n---\n"
        (tmp_path / "README.md").write_text(readme)
        with pytest.raises(ValueError, match=r"got 2 of .*train's 3"):
            hf_directory(tmp_path)


INFO = "dataset_info:\n  features: []\n  splits:\n  - name: train\n    num_examples: {n}\n"
CONFIGS = "configs:\n- config_name: en\n  data_files: en/*\n  default: true\n"
CONFIGS += "- config_name: de\n  data_files: de/*\n"
LIST = "dataset_info:\n- config_name: de\n  splits: [{{name: train, num_examples: 9}}]\n"
LIST += "- config_name: en\n  splits: [{{name: train, num_examples: {n}}}]\n"


class TestRows:
    @pytest.mark.parametrize("ending", ["parquet", "jsonl", "arrow", "jsonl.gz"])
    @pytest.mark.parametrize("front", [INFO, CONFIGS + LIST], ids=["one", "several"])
    @pytest.mark.parametrize("n", [6, 4])
    def test_are_those_of_the_readme(self, tmp_path, ending, front, n):
        write(tmp_path / "en" / f"train.{ending}", [1, 2, 3])
        write(tmp_path / "en" / f"train2.{ending}", [4, 5])
        for count in (5, n):
            (tmp_path / "README.md").write_text(f"---\n{front.format(n=count)}---\n# Data\n")
            if count == 5:
                assert len(list(records(hf_directory(tmp_path)))) == 5
                continue
            message = rf"must have the rows of README.md: got .* 5 rows, and num_examples: {n}\."
            with pytest.raises(ValueError, match=message):
                hf_directory(tmp_path)

    @pytest.mark.parametrize("ending", ["txt", "txt.gz"])
    def test_of_text_are_lines_or_files(self, tmp_path, ending):
        for i, content in enumerate((b"one\ntwo\n", b"three")):
            packed = gzip.compress(content) if ending == "txt.gz" else content
            (tmp_path / f"train{i}.{ending}").write_bytes(packed)
        for count in (3, 2, 4):
            (tmp_path / "README.md").write_text(f"---\n{INFO.format(n=count)}---\n")
            if count < 4:
                assert len(list(records(hf_directory(tmp_path)))) == 2
                continue
            with pytest.raises(
                ValueError, match=r"3 lines in 2 files, and num_examples: 4\. Fetch"
            ):
                hf_directory(tmp_path)

    @pytest.mark.parametrize(
        ("front", "reason"),
        [
            ("dataset_info: x\n", r"the entry 'x', not a mapping"),
            ("dataset_info: {splits: [train]}\n", r"the split 'train', not a mapping with a name"),
            (INFO.format(n="many"), r"num_examples: 'many' of the split 'train', no number"),
        ],
    )
    def test_that_cannot_be_read(self, tmp_path, front, reason):
        write(tmp_path / "train.jsonl", [1])
        (tmp_path / "README.md").write_text(f"---\n{front}---\n")
        message = f"the dataset_info of README.md must list the rows of each split: got .*{reason}"
        with pytest.raises(ValueError, match=message):
            hf_directory(tmp_path)

    def test_of_another_configuration_or_split_are_not_asked_for(self, tmp_path):
        write(tmp_path / "train.jsonl", [1])
        for front in (LIST.format(n=7), INFO.format(n=7).replace("train", "test")):
            (tmp_path / "README.md").write_text(f"---\n{front}---\n")
            assert len(list(records(hf_directory(tmp_path)))) == 1
