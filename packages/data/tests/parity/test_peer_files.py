# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of Bagz and of TensorFlow Datasets, written and read by these packages themselves."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from dovetail_data import (
    Bytes,
    Corrupt,
    Image,
    Text,
    bagz,
    images,
    jsonl,
    records,
    tfds,
    values,
    write,
)

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]  # theirs are their own
bagz_library = pytest.importorskip("bagz")
tfds_library = pytest.importorskip("tensorflow_datasets")


def write_bagz(path, contents):
    with bagz_library.Writer(str(path)) as writer:
        for content in contents:
            writer.write(content)


def test_bagz_files_and_sharded_names(tmp_path):
    lines = [b'{"text": "line %d"}' % i for i in range(17)]
    for i, (start, stop) in enumerate([(0, 5), (5, 6), (6, 17)]):
        write_bagz(tmp_path / f"web-{i:05d}-of-00003.bagz", lines[start:stop])
    expected = [{"text": f"line {i}"} for i in range(17)]
    assert list(bagz_library.Reader(str(tmp_path / "web@3.bagz"))) == lines
    for paths in (tmp_path / "web@3.bagz", str(tmp_path / "web@3.bagz"), tmp_path):
        source = bagz(paths)
        assert list(records(source)) == expected
        assert list(records(pickle.loads(pickle.dumps(source)))) == expected
    assert next(records(bagz(tmp_path, decode="bytes"))) == {"bytes": lines[0]}
    corpus = write(bagz(tmp_path), tmp_path / "corpus", encoder=Text(Bytes()), workers=2)
    assert [corpus.source(i) for i in (0, 5, 16)] == [
        ("web-00000-of-00003.bagz[0:5]", 0),
        ("web-00001-of-00003.bagz[0:1]", 0),
        ("web-00002-of-00003.bagz[0:11]", 10),
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    again = write(jsonl(tmp_path / "in.jsonl"), tmp_path / "again", encoder=Text(Bytes()))
    for i in range(17):
        np.testing.assert_array_equal(corpus[i]["tokens"], again[i]["tokens"])


def test_damaged_bagz_files(tmp_path):
    write_bagz(tmp_path / "a.bagz", [b'{"text": "%s"}' % (b"abcdefgh" * 99), b'{"text": "b"}'])
    content = (tmp_path / "a.bagz").read_bytes()
    (tmp_path / "cut.bagz").write_bytes(content[:-3])
    with pytest.raises(ValueError, match=r"must end with its index: got .*cut.bagz"):
        bagz(tmp_path / "cut.bagz")
    (tmp_path / "flip.bagz").write_bytes(bytes([content[0] ^ 0xFF]) + content[1:])
    source = bagz(tmp_path / "flip.bagz")
    (part,) = source.parts()
    first, second = source.read(part)
    assert isinstance(first, Corrupt)
    assert second == {"text": "b"}
    with pytest.raises(ValueError, match=r"a source must exist: got path=.*web-00000-of-00002"):
        bagz(tmp_path / "web@2.bagz")
    write_bagz(tmp_path / "a,b.bagz", [b"{}"])
    with pytest.raises(ValueError, match="must have no comma and no @"):
        bagz(tmp_path / "a,b.bagz")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """prepared(format): the directory of a data set that TFDS prepared."""
    features = tfds_library.features

    class Tiny(tfds_library.core.GeneratorBasedBuilder):
        VERSION = tfds_library.core.Version("1.0.0")

        def _info(self):
            described = {
                "text": features.Text(),
                "turns": features.Sequence({"said": features.Text(), "score": np.float32}),
                "label": features.ClassLabel(num_classes=3),
                "pixels": features.Tensor(shape=(4, 3, 1), dtype=np.uint8),
                "reward": features.Tensor(shape=(2,), dtype=np.float32),
            }
            named = features.FeaturesDict(described)
            return tfds_library.core.DatasetInfo(builder=self, features=named)

        def _split_generators(self, download):
            return {"train": self._generate_examples(7), "test": self._generate_examples(3)}

        def _generate_examples(self, count):
            for i in range(count):
                yield (
                    i,
                    {
                        "text": f"naïve {i}",
                        "turns": [{"said": f"é{j}", "score": j / 3} for j in range(i)],
                        "label": i % 3,
                        "pixels": np.full((4, 3, 1), i, np.uint8),
                        "reward": np.array([i, np.nan], np.float32),
                    },
                )

    def make(file_format):
        root = tmp_path_factory.mktemp("tfds")
        builder = Tiny(data_dir=str(root), file_format=file_format)
        builder.download_and_prepare()
        return Path(str(builder.data_path))

    return make


@pytest.fixture(scope="module")
def tiny(prepared):
    return prepared("array_record")


def test_a_prepared_data_set(tiny):
    for split, count in (("train", 7), ("test", 3)):
        source = tfds(tiny, split=split)
        builder = tfds_library.builder_from_directory(str(tiny))
        expected = builder.as_data_source(split=split)
        given = list(records(source))
        assert len(given) == len(expected) == count
        for mine, theirs in zip(given, expected, strict=True):
            assert mine["text"] == theirs["text"].decode()
            assert mine["turns"]["said"] == [said.decode() for said in theirs["turns"]["said"]]
            for name in ("label", "pixels", "reward"):
                np.testing.assert_array_equal(mine[name], theirs[name])
            np.testing.assert_array_equal(mine["turns"]["score"], theirs["turns"]["score"])
        assert list(map(str, records(pickle.loads(pickle.dumps(source))))) == list(map(str, given))
    assert tfds(tiny).fingerprint != tfds(tiny, split="test").fingerprint


def test_corpora_of_a_prepared_data_set(tiny, tmp_path):
    source = tfds(tiny)
    fields = {"reward": values("float32", shape=(2,))}
    texts = write(source, tmp_path / "text", encoder=Text(Bytes(), fields=fields), workers=2)
    given = list(records(source))
    for i, record in enumerate(given):
        assert Bytes().decode(texts[i]["tokens"]) == record["text"]
        np.testing.assert_array_equal(texts[i]["reward"], record["reward"])
    pictures = write(source, tmp_path / "images", encoder=Image(field="pixels"))
    rows = images(pictures, mode="L")
    for i, record in enumerate(given):
        np.testing.assert_array_equal(rows[i]["images"], record["pixels"])
        assert rows[i]["labels"] == record["label"]


def test_other_data_sets_are_refused(prepared, tiny):
    with pytest.raises(
        ValueError, match=r"split must be one of \['test', 'train'\]: got split='x'"
    ):
        tfds(tiny, split="x")
    with pytest.raises(ValueError, match="must be in the format array_record: got 'tfrecord' in"):
        tfds(_claimed(tiny, "tfrecord"))


def _claimed(directory, file_format):
    other = directory.parent / "9.9.9"
    other.mkdir(exist_ok=True)
    for name in ("dataset_info.json", "features.json"):
        content = (directory / name).read_text().replace('"array_record"', f'"{file_format}"')
        (other / name).write_text(content)
    return other


def test_a_damaged_example_costs_itself(tiny, tmp_path):
    source = tfds(tiny)
    assert isinstance(source.record(b"\xff no example"), Corrupt)
    (part,) = source.parts()
    assert source.locate(part, 3).endswith("record 3")
