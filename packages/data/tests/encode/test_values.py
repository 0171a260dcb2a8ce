# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import ml_dtypes
import numpy as np
import pytest

from dovetail_data import (
    Bytes,
    Corpus,
    Corrupt,
    Document,
    Field,
    Image,
    Part,
    Preference,
    Prompt,
    Text,
    batches,
    images,
    jsonl,
    mix,
    pack,
    pad,
    pairs,
    prompts,
    values,
    write,
)

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TEXTS = ["to be", "or not", "", "日本", "that is the question"]


class Given:
    """A source of records in memory, arrays included."""

    fingerprint = "given"

    def __init__(self, records):
        self.records = records

    def parts(self):
        return [Part(name="given", path="/none", start=0, stop=1, bytes=1)]

    def read(self, part):
        yield from self.records

    def locate(self, part, i):
        return f"given:{i}"


def any_bits(rng, shape, dtype):
    """Returns values of any bits: NaNs with payloads, infinities, subnormals, -0."""
    raw = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    special = rng.random(shape) < 0.3
    raw[special, -1] |= 0x7F  # the exponents of NaN and infinity
    raw[special, -2] |= 0xF0
    return raw.view(dtype)[..., 0]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_images_come_back_bit_equal(dtype, tmp_path):
    rng = np.random.default_rng(0)
    given = [
        {
            "image": rng.integers(0, 256, (3, 2), np.uint8),
            "label": i,
            "embedding": any_bits(rng, (5, 2), DTYPES[dtype]),
            "reward": any_bits(rng, (), DTYPES[dtype]),
        }
        for i in range(7)
    ]
    assert any(np.isnan(record["embedding"].astype(np.float64)).any() for record in given)
    fields = {"embedding": values(dtype, shape=(5, 2)), "reward": values(dtype)}
    write(Given(given), tmp_path / "c", encoder=Image(fields=fields))
    rows = images(Corpus(tmp_path / "c"), mode="L")
    assert [rows[i]["image_ids"] for i in range(7)] == [*range(7)]
    it = batches(rows, global_batch=4, seed=0, epochs=1)
    drawn = []
    for step, batch in enumerate(it):
        assert batch["embedding"].dtype == DTYPES[dtype]
        assert batch["embedding"].shape == (4, 5, 2)
        explained = [span.document for spans in it.explain(step) for span in spans]
        counts = batch["mask"] > 0
        assert batch["image_ids"][counts].tolist() == explained
        assert batch["labels"][counts].tolist() == explained
        drawn += explained
        for i, image in enumerate(explained):
            for name in fields:
                np.testing.assert_array_equal(bits(batch[name][i]), bits(given[image][name]))
    assert sorted(drawn) == [*range(7)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_tokens_are_in_the_slots_of_their_targets(dtype, tmp_path):
    rng = np.random.default_rng(1)
    counts = [len(text.encode()) + 2 for text in TEXTS]
    given = [
        {"text": text, "logps": any_bits(rng, (n, 3), DTYPES[dtype])}
        for text, n in zip(TEXTS, counts, strict=True)
    ]
    encoder = Text(Bytes(), fields={"logps": values(dtype, shape=(3,), per_token=True)})
    corpus = write(Given(given), tmp_path / "c", encoder=encoder)
    kept = [record for record in given if record["text"]]
    assert corpus.lengths.tolist() == [len(record["logps"]) for record in kept]
    for rows in (pack(corpus, length=7, seed=0), pad(corpus, length=32)):
        batch = rows.batch(np.arange(len(rows)))
        assert batch["logps"].shape == (len(rows), rows.length, 3)
        seen = 0
        for row in range(len(rows)):
            for segment, span in enumerate(rows.explain(row), start=1):
                inside = batch["segment_ids"][row] == segment
                targets = slice(span.start + 1, span.start + span.length + 1)
                expected = kept[span.document]["logps"][targets]
                np.testing.assert_array_equal(bits(batch["logps"][row, inside]), bits(expected))
                seen += span.length
            empty = batch["segment_ids"][row] == 0
            assert not bits(batch["logps"][row, empty]).any()
        assert seen == sum(n - 1 for n, text in zip(counts, TEXTS, strict=True) if text)


def test_values_of_records_are_with_their_padded_row_and_both_of_a_pair(written):
    fields = {"reward": values("float32"), "scores": values("int32", shape=(2,))}
    given = [
        {"text": text, "reward": 0.1 * i, "scores": [i, -i]} for i, text in enumerate("abc", 1)
    ]
    rows = pad(written(given, Text(Bytes(), fields=fields)), length=4)
    batch = rows.batch(np.array([2, 0]))
    assert batch["reward"].tolist() == np.array([0.1 * 3, 0.1], np.float32).tolist()
    assert batch["scores"].tolist() == [[3, -3], [1, -1]]
    told = [
        {"prompt": "2+2?", "chosen": str(i), "rejected": "no", "reward": i, "scores": [i, i + 1]}
        for i in range(3)
    ]
    rows = pairs(written(told, Preference(Bytes(), fields=fields)), length=16)
    batch = rows.batch(np.array([2, 1]))
    assert batch["pair_ids"].tolist() == [2, 2, 1, 1]
    assert batch["reward"].tolist() == [2, 2, 1, 1]
    assert batch["scores"].tolist() == [[2, 3], [2, 3], [1, 2], [1, 2]]


def test_nan_of_json_and_rows_of_damaged_documents(written):
    fields = {"reward": values("float16")}
    line = [{"text": "a", "reward": float("nan")}, {"text": "b", "reward": 7}]
    corpus = written(line, Text(Bytes(), fields=fields))
    shard = next(corpus.directory.glob("*.array_record"))
    content = bytearray(shard.read_bytes())
    rows = pad(corpus, length=4)
    assert np.isnan(rows[0]["reward"])
    at = bytes(content).index(np.array([256, ord("b"), 257], "<u2").tobytes())
    content[at] ^= 1
    shard.write_bytes(content)
    corrupt = []
    batch = pad(Corpus(corpus.directory), length=4).batch(np.array([1, 0]), corrupt=corrupt)
    assert [bad.document for bad in corrupt] == [1]
    assert batch["reward"][0] == 0
    assert np.isnan(batch["reward"][1])


def test_mixtures_number_the_images_of_all_sources(tmp_path):
    rng = np.random.default_rng(2)
    given = [
        {"image": rng.integers(0, 256, (2, 2), np.uint8), "label": i, "reward": float(i)}
        for i in range(3)
    ]
    encoder = Image(fields={"reward": values("float32")})
    rows = images(write(Given(given), tmp_path / "c", encoder=encoder))
    mixed = mix({"a": rows, "b": rows}, weights={"a": 1, "b": 1})
    batch = mixed.batch(np.array([4, 0]))
    assert batch["image_ids"].tolist() == [4, 0]
    assert batch["labels"].tolist() == [1, 0]
    assert batch["reward"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("workers", [0, 2])
def test_values_of_bfloat16_pass_through_processes(workers, tmp_path):
    rng = np.random.default_rng(3)
    given = [
        {"text": "a", "embedding": any_bits(rng, (9000,), ml_dtypes.bfloat16)} for _ in range(6)
    ]
    encoder = Text(Bytes(), fields={"embedding": values("bfloat16", shape=(9000,))})
    rows = pad(write(Given(given), tmp_path / "c", encoder=encoder), length=4)
    with_workers = batches(rows, global_batch=6, seed=None, epochs=1, workers=workers)
    batch = next(with_workers)
    with_workers.close()
    for i in range(6):
        np.testing.assert_array_equal(bits(batch["embedding"][i]), bits(given[i]["embedding"]))


@pytest.mark.thorough
def test_rows_refuse_values_that_they_cannot_hold(written):
    reward, logps = values("float32"), values("float32", per_token=True)
    of_record = written([{"text": "a", "reward": 1}], Text(Bytes(), fields={"reward": reward}))
    with pytest.raises(ValueError, match=r"rows of pack must not drop values: got .*\['reward'\]"):
        pack(of_record, length=4)
    each = [{"text": "a", "logps": [1, 2, 3]}]
    of_tokens = written(each, Text(Bytes(), fields={"logps": logps}))
    assert pad(of_tokens, length=4)[0]["logps"].tolist() == [2, 3, 0, 0]
    for encoder in (Image, lambda fields: Preference(Bytes(), fields=fields)):
        with pytest.raises(ValueError, match=r"documents of one text: got per_token=True"):
            encoder(fields={"logps": logps})
    with pytest.raises(ValueError, match=r"rows of prompts must not drop values: got .*\['reward'"):
        prompts(written([{"prompt": "a"}], Rewarded()), length=8)


class Rewarded(Prompt):
    """An encoder of a user, with a field of its own."""

    def __init__(self):
        super().__init__(Bytes())
        self.layout = {**self.layout, "reward": values("float32")}

    def __call__(self, records):
        (document,) = super().__call__(records)
        return [Document(arrays={**document.arrays, "reward": np.array(1, np.float32)})]


WRONG = {
    "a record must have the fields ['reward']: got ['text']. Add 'reward'": {},
    "reward must have numbers of shape=[2]: got ['a', 'b']. Mend": {"reward": ["a", "b"]},
    "reward must have numbers of shape=[2]: got [1, None]. Mend": {"reward": [1, None]},
    "reward must have numbers of shape=[2]: got [[1, 2], [3]]. Mend": {"reward": [[1, 2], [3]]},
    "each value of reward must have shape=[2]: got [3]. Reshape": {"reward": [1, 2, 3]},
    "reward must have ndim=1 and a dtype that float16 holds: got float16[]": {"reward": 1},
    "reward must fit float16: got [100000.0, 1]. Pass a wider": {"reward": [1e5, 1]},
    "a dtype that float16 holds: got float64[2]. Cast it": {"reward": np.array([0.1, 0.2])},
    "a dtype that float16 holds: got bool[2]. Cast it": {"reward": [True, False]},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_value_makes_its_record_corrupt(message):
    encoder = Text(Bytes(), fields={"reward": values("float16", shape=(2,))})
    (document,) = encoder([{"text": "a", **WRONG[message]}])
    assert isinstance(document, Corrupt)
    assert message in document.error


def test_values_must_count_the_ids():
    encoder = Text(Bytes(), fields={"logps": values("float32", per_token=True)})
    (document,) = encoder([{"text": "ab", "logps": [0.5] * 3}])
    assert "got 3 values, 4 ids. Make it with the tokenizer" in document.error


def test_fields_change_the_fingerprint_and_their_absence_does_not(written):
    plain = Text(Bytes())
    other = [
        Text(Bytes(), fields={"a": field})
        for field in (values("float32"), values("float16"), values("float32", per_token=True))
    ]
    assert len({encoder.fingerprint for encoder in (plain, *other)}) == 4
    assert Text(Bytes(), fields={}).fingerprint == plain.fingerprint
    # As it was before encoders had fields: corpora on disk go on.
    corpus = written([{"text": "a"}], plain)
    index = json.loads((corpus.directory / "index.json").read_text())
    assert index["layout"] == {"tokens": {"dtype": "<u2", "ndim": 1, "vocab_size": 258}}


def test_names_and_fields_are_checked():
    with pytest.raises(ValueError, match=r"must not have the name of another array: got .*'mask'"):
        Text(Bytes(), fields={"mask": values("float32")})
    with pytest.raises(TypeError, match=r"fields\['a'\] must be a field of values: got"):
        Text(Bytes(), fields={"a": Field(dtype="<f4")})


def test_records_of_a_file_have_their_values(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "reward": 0.3}\n')
    encoder = Text(Bytes(), fields={"reward": values("float32")})
    corpus = write(jsonl(tmp_path / "a.jsonl"), tmp_path / "c", encoder=encoder)
    assert corpus[0]["reward"] == np.float32(0.3)
