# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
from types import MappingProxyType

import numpy as np
import pytest

from dovetail_data import Document, Field, Span, batches, ids, jsonl, mix, pad, prompts, write

LENGTHS = [3, 1, 4]


class Prompts:
    """A record's n becomes the ids 10 n + 1.. of a prompt; all of the record is its extra."""

    tokenizer = None
    layout = MappingProxyType({"tokens": ids(1000), "extra": Field(dtype="|u1")})
    manifest = MappingProxyType({"encoder": "prompts"})
    fingerprint = "prompts"

    def __call__(self, records):
        return [
            Document(
                arrays={
                    "tokens": 10 * record["n"] + 1 + np.arange(record["n"]),
                    "extra": np.frombuffer(json.dumps(record).encode(), np.uint8),
                }
            )
            for record in records
        ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prompts")
    lines = [json.dumps({"n": n, "answer": f"né {n}"}) for n in LENGTHS]
    (directory / "x.jsonl").write_text("\n".join(lines))
    return write(jsonl(directory), directory / "c", encoder=Prompts())


def test_all_ids_of_a_prompt_stand_in_its_row(corpus):
    rows = prompts(corpus, length=4)
    batch = rows.batch(np.array([1, 2, 0]))
    assert batch["tokens"].tolist() == [[11, 0, 0, 0], [41, 42, 43, 44], [31, 32, 33, 0]]
    assert batch["segment_ids"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["positions"].tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 2, 0]]
    assert not batch["mask"].any()
    assert batch["mask"].dtype == np.float32
    assert batch["prompt_ids"].tolist() == [1, 2, 0]
    assert (rows.tokens, rows.fill) == (8, 8 / 12)


@pytest.mark.thorough
def test_extra_gives_what_else_the_records_held(corpus):
    rows = prompts(corpus, length=4)
    batch = next(batches(rows, global_batch=3, seed=5))
    extra = rows.extra(batch["prompt_ids"])
    assert extra == [{"n": n, "answer": f"né {n}"} for n in batch["segment_ids"].sum(axis=1)]


def test_what_does_not_fit_is_an_error(corpus):
    message = r"document=2 \(record 2 of x.jsonl.*\) of 4 slots, length=3. Pass length=4"
    with pytest.raises(ValueError, match=message):
        prompts(corpus, length=3)


def test_explain(corpus):
    source = corpus.source(2)[0]
    assert prompts(corpus, length=4).explain(2) == [
        Span(document=2, start=0, length=4, source=source, record=2)
    ]


def test_another_corpus_is_an_error(corpus_of):
    with pytest.raises(ValueError, match=r"the field 'extra': got .*'tokens'.*Write it with"):
        prompts(corpus_of([3, 4]), length=4)


def test_a_mixture_numbers_the_prompts_of_all_its_sources(corpus):
    single = prompts(corpus, length=4)
    rows = mix({"a": single, "b": single.map(lambda row, rng: row)}, weights={"a": 1, "b": 2})
    batch = rows.batch(np.array([5, 0, 4, 2]))
    assert batch["prompt_ids"].tolist() == [5, 0, 4, 2]
    assert batch["segment_ids"].sum(axis=1).tolist() == [4, 3, 1, 4]
    assert [fields["n"] for fields in rows.extra(batch["prompt_ids"])] == [4, 3, 1, 4]


def test_other_rows_have_no_extra(corpus_of):
    with pytest.raises(ValueError, match=r"only prompts have fields .*: got TokenRows. Make the"):
        pad(corpus_of([3, 4]), length=4).extra([0])
