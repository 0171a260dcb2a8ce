# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pytest

from dovetail_data import Bytes, Contrast, Corrupt, Text

FIELDS = {"query": "q", "positive": "p", "negative": "n"}


@pytest.mark.parametrize("absent", ["", None])
def test_each_text_has_begin_and_end_and_an_absent_negative_has_no_id(bpe, absent):
    encoder = pickle.loads(pickle.dumps(Contrast(bpe, **FIELDS)))
    records = [{"q": "red", "p": "é", "n": "two"}, {"n": absent, "q": "one", "p": "red"}]
    documents = encoder(records)
    plain = Text(bpe)
    for record, document in zip(records, documents, strict=True):
        assert list(document.arrays) == ["q", "p", "n"]
        for name, tokens in document.arrays.items():
            assert tokens.dtype == np.int32
            wanted = plain([{"text": record[name]}])[0].arrays["tokens"] if record[name] else []
            assert tokens.tolist() == list(wanted)


@pytest.mark.parametrize("record", [{"p": "x"}, {"q": "", "p": "x"}, {"q": 3, "p": "x"}])
def test_a_record_without_its_texts_is_corrupt(record):
    (refused,) = Contrast(Bytes(), **FIELDS)([record])
    assert isinstance(refused, Corrupt)
    assert f"under q, p, got q={record.get('q')!r} with the fields {sorted(record)}: write it" in (
        refused.error
    )


def test_text_that_is_no_unicode_is_corrupt():
    (refused,) = Contrast(Bytes())([{"query": "a\ud800", "positive": "b"}])
    assert "without lone surrogates: got '\\ud800'" in refused.error


def test_another_choice_of_texts_is_another_corpus_and_stored_ones_keep_their_fingerprint():
    three, two = Contrast(Bytes(), negative="negative"), Contrast(Bytes())
    assert three.fingerprint != two.fingerprint
    printed = "f711522c312d82cf3380cf38b5567f5c2a365ed5ab3f33e56e566f2efe3b7a00"
    assert (three.fingerprint, three.manifest["encoder"]) == (printed, "passages")


def test_texts_have_fields_of_their_own():
    message = r"fields of their own: got query='a', positive='a', negative=None. Pass different"
    with pytest.raises(ValueError, match=message):
        Contrast(Bytes(), query="a", positive="a")
    with pytest.raises(ValueError, match="positive='positive', negative='query'"):
        Contrast(Bytes(), negative="query")
