# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import bz2
import gzip
import json

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from dovetail_data.sources.hf_directory import hf_directory
from dovetail_data.sources.source import records

ROWS = [{"n": i, "messages": [{"role": "user", "content": f"m{i}"}]} for i in range(25)]


def save(directory, rows, *, shards=3, **state):
    """What Dataset.save_to_disk writes, by pyarrow alone."""
    directory.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    table = pa.Table.from_pylist(rows)
    size = -(-len(rows) // shards)
    for i, name in enumerate(names):
        with ipc.new_stream(directory / name, table.schema) as writer:
            writer.write_table(table.slice(i * size, size), max_chunksize=4)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None, **state}
    (directory / "state.json").write_text(json.dumps(state))
    (directory / "dataset_info.json").write_text("{}")
    return names


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_a_saved_dataset(tmp_path):
    names = save(tmp_path / "d", ROWS)
    assert list(records(hf_directory(tmp_path / "d"))) == ROWS
    assert list(records(hf_directory(str(tmp_path / "d"), split="any"))) == ROWS
    read = records(hf_directory(tmp_path / "d", columns=["n"]))
    assert list(read) == [{"n": row["n"]} for row in ROWS]
    state = {"_data_files": [{"filename": name} for name in reversed(names)], "_split": "test"}
    (tmp_path / "d" / "state.json").write_text(json.dumps(state))
    source = hf_directory(tmp_path / "d", split="test")
    assert list(records(source)) == ROWS[18:] + ROWS[9:18] + ROWS[:9]
    assert source.parts()[0].name.startswith("data-00002-of-00003.arrow")
    with pytest.raises(
        ValueError, match=r"must be in the directory: got split='train', .* has \['test'\]"
    ):
        hf_directory(tmp_path / "d")


def test_a_saved_dictionary_of_datasets(tmp_path):
    save(tmp_path / "d" / "train", ROWS[:20])
    save(tmp_path / "d" / "held out", ROWS[20:], shards=1)
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "held out"]}')
    assert list(records(hf_directory(tmp_path / "d"))) == ROWS[:20]
    assert list(records(hf_directory(tmp_path / "d", split="held out"))) == ROWS[20:]
    message = r"got split='test', .*d has \['held out', 'train'\]\. Choose one of those, or give"
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path / "d", split="test")


def test_a_saved_dataset_that_is_not_whole_or_reordered_is_an_error(tmp_path):
    (name, *_) = save(tmp_path / "d", ROWS)
    (tmp_path / "d" / name).unlink()
    with pytest.raises(ValueError, match=r"must exist: got path='.*data-00000-of-00003\.arrow'"):
        hf_directory(tmp_path / "d")
    for content in ('{"_data_files": [', '{"_split": null}'):
        (tmp_path / "d" / "state.json").write_text(content)
        message = r"must be whole: got .*state\.json: .*\. Save it again\."
        with pytest.raises(ValueError, match=message):
            hf_directory(tmp_path / "d")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ValueError, match=r"must be whole: got .*train/state\.json: .*No such file"):
        hf_directory(tmp_path / "f")
    save(tmp_path / "e", ROWS, _indices_data_files=[{"filename": "indices.arrow"}])
    message = r"must lie as its rows go: got .*e with \['_indices_data_files'\]\. Load it with"
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path / "e")


def test_a_repository_of_parquet_shards(tmp_path):
    for i, rows in enumerate([ROWS[:9], ROWS[9:]]):
        write_parquet(tmp_path / "data" / f"train-{i:05d}-of-00002.parquet", rows)
    write_parquet(tmp_path / "data" / "test_sft-00000-of-00001.parquet", ROWS[:2])
    (tmp_path / "README.md").write_text("# data")
    assert list(records(hf_directory(tmp_path))) == ROWS
    assert list(records(hf_directory(tmp_path, columns=["n"]))) == [{"n": i} for i in range(25)]
    assert list(records(hf_directory(tmp_path, split="test_sft"))) == ROWS[:2]
    with pytest.raises(ValueError, match=r"got split='test', .* has \['test_sft', 'train'\]"):
        hf_directory(tmp_path, split="test")


@pytest.mark.parametrize(
    "name", ["train.jsonl", "train.json", "x/train.ndjson.gz", "train.json.bz2"]
)
def test_a_repository_of_json_lines(tmp_path, name):
    pack = {"gz": gzip.compress, "bz2": bz2.compress}.get(name.split(".")[-1], bytes)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(pack(lines(ROWS)))
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / ".cache" / "train").mkdir(parents=True)
    (tmp_path / ".cache" / "train" / "old.jsonl").write_bytes(lines(ROWS[:1]))
    (tmp_path / "valid.jsonl").write_bytes(lines(ROWS[:3]))
    assert list(records(hf_directory(tmp_path))) == ROWS
    assert list(records(hf_directory(tmp_path, split="validation"))) == ROWS[:3]
    message = (
        r"columns are for parquet and arrow files: got columns=\['n'\] for jsonl\. Leave it out"
    )
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path, columns=["n"])


def test_a_repository_of_texts_and_of_arrow(tmp_path):
    (tmp_path / "t" / "train").mkdir(parents=True)
    (tmp_path / "t" / "train" / "1.txt").write_text("one\ntwo\n")
    (tmp_path / "t" / "train" / "2.txt.gz").write_bytes(gzip.compress(b"three"))
    assert list(records(hf_directory(tmp_path / "t"))) == [
        {"text": "one\ntwo\n"},
        {"text": "three"},
    ]
    (tmp_path / "a").mkdir()
    with ipc.new_file(tmp_path / "a" / "some.arrow", pa.schema({"n": pa.int64()})) as writer:
        writer.write_table(pa.table({"n": [1, 2]}))
    assert list(records(hf_directory(tmp_path / "a"))) == [{"n": 1}, {"n": 2}]


def test_the_readme_says_which_files(tmp_path):
    for name, rows in {"one.parquet": ROWS[:5], "two.parquet": ROWS[5:]}.items():
        write_parquet(tmp_path / name, rows)
    (tmp_path / "train.csv").write_text("n\n1\n")
    entries = "  - split: sft\n    path: two.*\n  - split: bad\n    path: '*.csv'\n"
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- data_files:\n{entries}---\n")
    assert list(records(hf_directory(tmp_path, split="sft"))) == ROWS[5:]
    with pytest.raises(ValueError, match=r"got split='train', .* has \['bad', 'sft'\]"):
        hf_directory(tmp_path)
    message = (
        r"must be files of one format, of \[.*\]: got .* with split='bad' in \['train\.csv'\]\."
    )
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path, split="bad")


def test_several_formats_are_an_error(tmp_path):
    write_parquet(tmp_path / "train.parquet", ROWS)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(lines(ROWS)))
    message = (
        r"must be files of one format, .* split='train' in \['train\.jsonl\.gz', 'train\.parquet'\]"
        r"\. Give the files of one to parquet\("
    )
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path)


def test_what_cannot_be_read_as_it_lies_is_an_error(tmp_path):
    (tmp_path / "train.parquet.gz").write_bytes(b"")
    message = r"parquet files must not be compressed as a whole: got \['.*gz'\]\. Unpack them"
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path)
    (tmp_path / "train.parquet.gz").unlink()
    (tmp_path / "train.json").write_text("[\n" + json.dumps(ROWS[0]) + "]")
    message = r"must have an object on each line: got .*train\.json, an array\. Write its items"
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path)
    (tmp_path / "train.json").unlink()
    with pytest.raises(
        ValueError, match=r"must be in the directory: got split='train', .* has \[\]"
    ):
        hf_directory(tmp_path)
    message = r"must be a directory: got path='.*nowhere'\. Correct its spelling, or give a single"
    with pytest.raises(ValueError, match=message):
        hf_directory(tmp_path / "nowhere")
