# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data import Bytes, Contrast, Span, batches, contrasts, mix, show

TEXTS = ["blue one", "two", "red red", "red", "say green", ""]
RECORDS = [
    {"query": "red", "positive": "say green", "negative": ""},
    {"query": "blue one", "positive": "two", "negative": "red red"},
]


@pytest.fixture
def corpus(written):
    return written(RECORDS, Contrast(Bytes(), negative="negative"))


def test_rows_are_the_texts_of_each_record(corpus):
    rows = contrasts(corpus, length=12)
    batch = rows.batch(np.array([1, 0]))
    assert list(batch) == ["tokens", "segment_ids", "positions", "group_ids"]
    for i, text in enumerate(TEXTS):
        wanted = [256, *text.encode(), 257] if text else []
        n = len(wanted)
        assert batch["tokens"][i].tolist() == wanted + [0] * (12 - n)
        assert batch["segment_ids"][i].tolist() == [1] * n + [0] * (12 - n)
        assert batch["positions"][i].tolist() == [*range(n), *[0] * (12 - n)]
    assert rows.tokens == int(batch["segment_ids"].sum())
    assert rows.fill == pytest.approx(rows.tokens / (6 * 12))


def test_equal_texts_have_equal_groups(written):
    texts = [("red", "blue"), ("green", "blue"), ("two", "one"), ("one", "red red")]
    records = [{"query": q, "positive": p} for q, p in texts]
    groups = contrasts(written(records, Contrast(Bytes())), length=12).batch(np.arange(4))
    assert groups["group_ids"].dtype == np.int32
    flat = [text for pair in texts for text in pair]
    equal = np.array([[a == b for a in flat] for b in flat])
    np.testing.assert_array_equal(groups["group_ids"][:, None] == groups["group_ids"], equal)


def test_batches_keep_the_texts_of_a_record_together(corpus):
    rows = contrasts(corpus, length=12)
    it = batches(rows, global_batch=3, seed=0)
    tokens = next(it)["tokens"]
    assert any(np.array_equal(tokens, rows.batch(np.array([i]))["tokens"]) for i in range(2))
    assert it.get_state()["fingerprint"].endswith(" rows=passages/12 seed=0")
    # The longest text of the record has 10 ids.
    source = corpus.source(1)[0]
    assert rows.explain(1) == [Span(document=1, start=0, length=10, source=source, record=1)]
    with pytest.raises(ValueError, match=r"3 rows on each of the 1 hosts: .*=4. Pass 3"):
        batches(rows, global_batch=4, seed=0)


def test_they_are_shown_text_by_text_mixed_and_mapped(corpus):
    rows = contrasts(corpus, length=12)
    mapped = mix({"a": rows.map(lambda row, rng: row)}, weights={"a": 1})
    for shown in (show(rows, [1]), show(mapped, [1])):
        (row,) = shown.rows
        sides = [passage.title.partition(":")[0] for passage in row.passages]
        assert sides == ["query", "positive", "negative"]
        texts = ["".join(p.text for p in passage.pieces[1:-1]) for passage in row.passages]
        assert texts == TEXTS[:3]
        assert row.summary == "24 of 36 slots filled, 0 learnt"
        assert row.side_by_side


def test_a_text_that_does_not_fit_and_another_corpus_are_refused(corpus, corpus_of):
    message = r"document=0 \(record 0 of in.jsonl.*\) of 11 slots, length=9. Pass length=11"
    with pytest.raises(ValueError, match=message):
        contrasts(corpus, length=9)
    with pytest.raises(ValueError, match=r"the field 'query': got .*'tokens'.*Write it with Con"):
        contrasts(corpus_of([3, 4]), length=4)
