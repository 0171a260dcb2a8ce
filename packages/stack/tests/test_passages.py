# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data import Corrupt, Pretrained, batches, jsonl, write
from dovetail_stack.recipes.passages import PassageRows, Passages
from dovetail_tune import info_nce

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


@pytest.mark.thorough
def test_equal_texts_are_no_negatives_of_each_other(talker, tmp_path):
    texts = [("red", "blue"), ("green", "blue"), ("two", "one"), ("one", "red red")]
    lines = "".join(f'{{"q": "{q}", "p": "{p}"}}\n' for q, p in texts)
    (tmp_path / "a.jsonl").write_text(lines)
    encoder = Passages(Pretrained(talker), FIELDS[:2])
    corpus = write(jsonl(tmp_path / "a.jsonl"), tmp_path / "c", encoder=encoder)
    batch = PassageRows(corpus, length=12, fields=FIELDS[:2]).batch(np.arange(4))
    ids = batch["group_ids"]
    assert ids.dtype == np.int32
    flat = [text for pair in texts for text in pair]
    equal = np.array([[a == b for a in flat] for b in flat])
    np.testing.assert_array_equal(ids[:, None] == ids[None], equal)

    def encode(model, batch):
        return np.eye(8, dtype=np.float32)[: len(batch["tokens"])]

    terms = info_nce(encode=encode)(None, batch, key=None)
    # Records 0 and 1 share a text, and so do 2 and 3: each has 2 negatives of 3.
    assert float(terms["negatives"][0]) == 8


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
