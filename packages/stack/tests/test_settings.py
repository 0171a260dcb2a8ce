# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail import settings
from dovetail.recipes.language_model import Shape, Training


def test_options_come_back_from_disk_where_they_belong(tmp_path):
    made = settings.create(
        {"text": "/t", "depth": 2, "seed": 7, "skip": ("a", "b"), "minutes": 1.5}
    )
    assert made.shape == Shape(depth=2)
    assert made.training == Training(seed=7)
    made.save(tmp_path)
    assert settings.load(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_differences_name_the_option_and_both_values():
    stored = settings.create({"text": "/t", "depth": 2})
    assert settings.differences({"text": "/t", "depth": 2}, stored) == []
    assert settings.differences({"depth": 3, "vocab_size": 9}, stored) == [
        "--depth 3 (the run has 2)",
        "--vocab-size 9 (the run has 4096)",
    ]


@pytest.mark.parametrize("content", ["{", "{}", '{"text": "x", "unknown": 1}', "[]"])
def test_a_file_of_another_version_says_to_start_a_new_run(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match="start a new run with another --out"):
        settings.load(tmp_path)
