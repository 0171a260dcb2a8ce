# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from dovetail_data.corpus.ledger import tidy

STAY = ["00000.array_record", "00000.npy", "00001.npy", "index.json", "ledger.jsonl"]
GO = [
    "00002.npy",
    "partial-00000.npy",
    "partial-0123abcd-00001.array_record",  # of a worker of Ray
    ".index.json.0123abcd.partial",
]


def test_what_was_left_unfinished_is_deleted(tmp_path):
    for name in STAY + GO:
        (tmp_path / name).touch()
    (tmp_path / "staged" / "0123").mkdir(parents=True)
    (tmp_path / "staged" / "0123" / "00000000-000000").touch()
    tidy(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == STAY
