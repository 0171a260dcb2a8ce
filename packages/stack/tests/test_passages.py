# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data import Corrupt, Pretrained, batches, jsonl, write
from dovetail_stack.recipes.passages import PassageRows, Passages

FIELDS = ("q", "p", "n")
LINES = '{"q": "red", "p": "say green", "n": ""}\n{"q": "blue one", "p": "two", "n": "red red"}\n'


@pytest.fixture
def rows(talker, tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    encoder = Passages(Pretrained(talker), FIELDS)
    corpus = write(jsonl(tmp_path / "a.jsonl"), tmp_path / "c", encoder=encoder)
    return PassageRows(corpus, length=12, fields=FIELDS)


def test_rows_are_the_texts_of_each_record_with_begin_and_end(rows, talker):
    tokenizer = Pretrained(talker)
    batch = rows.batch(np.array([1, 0]))
    texts = ["blue one", "two", "red red", "red", "say green", ""]
    for i, text in enumerate(texts):
        n = int(batch["segment_ids"][i].sum())
        ids = batch["tokens"][i, :n].tolist()
        (encoding,) = tokenizer.encode([text])
        wanted = [tokenizer.bos_id, *encoding.ids.tolist(), tokenizer.eos_id] if text else []
        assert ids == wanted
        assert batch["segment_ids"][i].tolist() == [1] * n + [0] * (12 - n)
        assert batch["positions"][i, :n].tolist() == list(range(n))
    assert rows.tokens == int(batch["segment_ids"].sum())
    assert rows.fill == pytest.approx(rows.tokens / (6 * 12))


def test_batches_keep_groups_together(rows):
    batch = next(batches(rows, global_batch=3, seed=0))
    first = rows.batch(np.array([0]))["tokens"], rows.batch(np.array([1]))["tokens"]
    assert any(np.array_equal(batch["tokens"], group) for group in first)
    assert rows.explain(1)[0].record == 1
    assert rows.identity(0)["rows"] == "passages/12"


@pytest.mark.parametrize("record", [{"p": "x"}, {"q": "", "p": "x"}, {"q": 3, "p": "x"}])
def test_a_record_without_its_texts_is_corrupt(talker, record):
    (refused,) = Passages(Pretrained(talker), FIELDS)([record])
    assert isinstance(refused, Corrupt)
    assert f"under q, p, got q={record.get('q')!r} with the fields {sorted(record)}: write it" in (
        refused.error
    )


def test_another_choice_of_fields_is_another_corpus(talker):
    tokenizer = Pretrained(talker)
    assert Passages(tokenizer, FIELDS).fingerprint != Passages(tokenizer, FIELDS[:2]).fingerprint
