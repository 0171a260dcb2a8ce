# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from dovetail_data.sources import _splits


@pytest.mark.parametrize(
    "names, expected",
    [
        (["b.parquet", "a.parquet"], {"train": ["a.parquet", "b.parquet"]}),
        (["x-train.jsonl", "dev.jsonl"], {"train": ["x-train.jsonl"], "validation": ["dev.jsonl"]}),
        (
            ["train/1.txt", "testing/train.txt"],
            {"train": ["train/1.txt"], "test": ["testing/train.txt"]},
        ),
        (["trainer.json", "my_val_1.json"], {"validation": ["my_val_1.json"]}),
        (
            ["data/train_sft-00001-of-00002-ab.parquet", "data/train_sft-00000-of-00002-cd.parquet",
             "data/gen-00000-of-00001.parquet", "train.parquet"],
            {"train_sft": ["data/train_sft-00000-of-00002-cd.parquet",
                           "data/train_sft-00001-of-00002-ab.parquet"],
             "gen": ["data/gen-00000-of-00001.parquet"]},
        ),
        (["a/train-00000-of-00001.json", "b/x.json"], {"train": ["a/train-00000-of-00001.json"]}),
        (["data/a-00000-of-00001.json", "train/b.json"], {"a": ["data/a-00000-of-00001.json"]}),
        (["en_us/evaluation.v2/x"], {"test": ["en_us/evaluation.v2/x"]}),
    ],
)  # fmt: skip
def test_splits_are_found_in_names(names, expected):
    assert _splits.by_name(names) == expected


@pytest.fixture
def repository(tmp_path):
    for name in ("data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet", "x.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def declare(repository, configs):
    (repository / "README.md").write_text(
        f"---\nlicense: mit\n{configs}tags:\n- x\n---\n# configs: no\n"
    )
    return _splits.declared(repository)


PLAIN = """\
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: "data/test-*"
"""
TRAIN = ["data/train-0.parquet", "data/train-1.parquet"]


@pytest.mark.parametrize(
    "configs, expected",
    [
        (PLAIN, {"train": TRAIN, "test": ["data/test-0.parquet"]}),
        (PLAIN.replace("\n", "\n    ").rstrip(" "),
         {"train": TRAIN, "test": ["data/test-0.parquet"]}),
        ("configs:\n- config_name: a\n  data_files: 'x.jsonl'\n", {"train": ["x.jsonl"]}),
        ("configs:\n- data_files: data/**\n", {"train": ["data/test-0.parquet", *TRAIN]}),
        ("configs:\n  # all\n  - data_files:\n      - x.jsonl\n      - data/test*\n\n",
         {"train": ["data/test-0.parquet", "x.jsonl"]}),
        ("configs:\n-\n  data_files:\n  - split: a\n    path:\n    - x.jsonl\n    - x.*\n",
         {"a": ["x.jsonl"]}),
        ("configs:\n- config_name: a\n  data_files: none\n- config_name: b\n  default: true\n"
         "  data_files: x.jsonl\n", {"train": ["x.jsonl"]}),
        ("configs:\n- config_name: a\n  data_files: none\n- config_name: default\n"
         "  data_files: x.jsonl\n", {"train": ["x.jsonl"]}),
        ("configs: [{data_files: x.jsonl}]\n", {"train": ["x.jsonl"]}),
        (PLAIN.replace("data/train", "no"), {"train": [], "test": ["data/test-0.parquet"]}),
    ],
)  # fmt: skip
def test_splits_are_declared_in_the_readme(repository, configs, expected):
    assert declare(repository, configs) == expected


def test_a_readme_without_configs_declares_nothing(repository):
    assert _splits.declared(repository) is None
    assert declare(repository, "") is None
    (repository / "README.md").write_text("# A dataset\nconfigs:\n- data_files: x\n")
    assert _splits.declared(repository) is None


@pytest.mark.parametrize(
    "configs, got",
    [
        ("configs:\n- config_name: a\n  data_files: x\n- config_name: b\n  data_files: x\n",
         "the configurations ['a', 'b'] without a default"),
        ("configs:\n- config_name: a\n  data_dir: x\n", "with ['config_name', 'data_dir'], not"),
        ("configs:\n  data_files: x\n", "configs that are no list of mappings"),
        ("configs:\n- data_files:\n", "the data_files None, not files"),
        ("configs:\n-\n", "configs that are no list of mappings"),
        ("configs:\n- data_files: x\n   default: true\n", "mapping values are not allowed here"),
        ("configs:\n- data_files:\n  - split: a\n", "the data_files entry {'split': 'a'}, not"),
        (PLAIN.replace("split: test", "split: train"), "the split 'train' in two entries"),
        (PLAIN.replace("data/train-*", "hf://x/y"), "the path 'hf://x/y', not within"),
        (PLAIN.replace("data/train-*", "/etc/*"), "the path '/etc/*', not within"),
        (PLAIN.replace("data/train-*", "../*"), "the path '../*', not within"),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_an_error(repository, configs, got):
    message = (
        rf"the configs of README\.md must list the files of each split: got .*README\.md: "
        rf".*{re.escape(got)}.*\. Pass the files to parquet\("
    )
    with pytest.raises(ValueError, match=message):
        declare(repository, configs)
