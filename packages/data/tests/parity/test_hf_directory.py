# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of datasets against the library `datasets` itself."""

import json
from pathlib import Path

import pytest

from dovetail_data import hf_directory, records

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),  # what datasets warns of is its own
]
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

ROWS = [{"n": i, "messages": [{"role": "user", "content": f"m{i}"}]} for i in range(25)]


def test_what_datasets_saves(tmp_path):
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(tmp_path / "one", num_shards=4)
    both = datasets.DatasetDict(train=dataset, test=dataset.select([3, 1]))
    both.save_to_disk(tmp_path / "both")
    assert list(records(hf_directory(tmp_path / "one"))) == dataset.to_list()
    assert list(records(hf_directory(tmp_path / "both"))) == dataset.to_list()
    assert list(records(hf_directory(tmp_path / "both", split="test"))) == [ROWS[3], ROWS[1]]
    for i in range(2):
        shard = dataset.shard(2, i, contiguous=True)
        shard.to_parquet(tmp_path / "hub" / "data" / f"train-{i:05d}-of-00002.parquet")
    assert list(records(hf_directory(tmp_path / "hub"))) == dataset.to_list()


@pytest.mark.parametrize(
    "names",
    [
        ["a.jsonl", "b.jsonl"],
        ["train.jsonl", "dev.jsonl", "x.jsonl"],
        ["my-training.jsonl", "eval_1.jsonl"],
        ["train/a.jsonl", "test/train.jsonl", "b.jsonl"],
        [
            "data/sft-00000-of-00002.jsonl",
            "data/sft-00001-of-00002.jsonl",
            "data/val-00000-of-00001.jsonl",
        ],
    ],
)
def test_splits_are_those_that_datasets_finds(tmp_path, names):
    for i, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"n": i}))
    (tmp_path / "config.json").write_text("{}")
    expected = datasets.data_files.get_data_patterns(str(tmp_path))
    for split in expected:
        resolved = datasets.data_files.DataFilesList.from_patterns(
            expected[split], base_path=str(tmp_path), allowed_extensions=[".jsonl"]
        )
        numbers = [json.loads(Path(path).read_text())["n"] for path in resolved]
        assert [
            record["n"] for record in records(hf_directory(tmp_path, split=str(split)))
        ] == numbers
    with pytest.raises(ValueError, match="split='none'"):
        hf_directory(tmp_path, split="none")


CALLS = [{"city": "Rome", "unit": "C"}, {"q": [1, "x"]}, {}, {"unit": 2, "city": None}]


@pytest.mark.parametrize("form", ["features", "use_json"])
def test_its_feature_json(tmp_path, form):
    """Dictionaries of other keys, orders and types, as tools have them."""
    rows = [{"calls": [{"name": "f", "arguments": x}], "tools": [x, {"n": i}]}
            for i, x in enumerate(CALLS)]  # fmt: skip
    options = {"on_mixed_types": "use_json"}
    if form == "features":
        json_of, text = datasets.Json(), datasets.Value("string")
        call = {"name": text, "arguments": json_of}
        features = {"calls": datasets.List(call), "tools": datasets.List(json_of)}
        options = {"features": datasets.Features(features)}
    dataset = datasets.Dataset.from_list(rows, **options)
    dataset.save_to_disk(tmp_path / "saved")
    (tmp_path / "hub").mkdir()
    dataset.to_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
    for directory in (tmp_path / "saved", tmp_path / "hub"):
        assert list(records(hf_directory(directory))) == list(dataset) == rows
