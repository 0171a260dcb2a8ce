# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import io
import re

import jaxtyping
import numpy as np
import pytest
from PIL import Image as Pillow

from dovetail_data import Corpus, Image, Part, Span, batches, images, write


class Arrays:
    """A source of given records."""

    def __init__(self, records):
        self.records = records
        self.fingerprint = f"arrays of {len(records)}"

    def parts(self):
        return [Part(name="made", path="", start=0, stop=1, bytes=1)]

    def read(self, part):
        yield from self.records

    def locate(self, part, i):
        return f"made record {i}"


def pictures(sizes):
    """Grey and coloured pictures in turn, of the given sizes."""
    rng = np.random.default_rng(0)
    shapes = [(*size, 3) if i % 2 else size for i, size in enumerate(sizes)]
    return [rng.integers(0, 256, shape, np.uint8) for shape in shapes]


@pytest.fixture(scope="module")
def pixels():
    return pictures([(5, 4)] * 5)


@pytest.fixture
def corpus(pixels, tmp_path):
    records = [{"image": array, "label": 10 - i} for i, array in enumerate(pixels)]
    return write(Arrays(records), tmp_path / "c", encoder=Image())


def coloured(array):
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)


def test_pixels_and_labels_come_back(corpus, pixels):
    rows = images(corpus)
    batch = rows.batch(np.array([3, 0, 4]))
    expected = np.stack([coloured(pixels[i]) for i in (3, 0, 4)])
    np.testing.assert_array_equal(batch["images"], expected)
    assert batch["images"].dtype == np.uint8
    assert batch["labels"].tolist() == [7, 10, 6]
    assert batch["labels"].dtype == np.int32
    assert batch["mask"].tolist() == [1, 1, 1]
    assert (len(rows), rows.tokens, rows.fill) == (5, 5, 1.0)


def test_grey_pixels_have_one_channel(corpus, pixels):
    batch = images(corpus, mode="L").batch(np.array([0, 2]))
    np.testing.assert_array_equal(batch["images"][..., 0], np.stack([pixels[0], pixels[2]]))


def noisy(image, rng):
    return image[:4].astype(np.float32) + rng.normal(size=(4, 1, 1)).astype(np.float32)


@pytest.mark.thorough
def test_random_transforms_are_the_same_on_any_number_of_hosts(corpus):
    rows = images(corpus, transform=noisy)
    whole = list(batches(rows, global_batch=4, seed=1, epochs=3))
    parts = [list(batches(rows, global_batch=4, seed=1, epochs=3, shard=(i, 2))) for i in (0, 1)]
    for step, batch in enumerate(whole):
        joined = np.concatenate([host[step]["images"] for host in parts])
        np.testing.assert_array_equal(joined, batch["images"])
    other = next(batches(rows, global_batch=4, seed=2))
    assert not np.array_equal(np.sort(other["images"].ravel()), np.sort(whole[0]["images"].ravel()))


def test_each_epoch_draws_other_numbers(corpus):
    rows = images(corpus, transform=lambda image, rng: rng.normal(size=3))
    it = batches(rows, global_batch=5, seed=1)
    values = np.concatenate([next(it)["images"].ravel() for _ in range(4)])
    assert len(np.unique(values)) == 60


def test_the_last_batch_is_filled_up(corpus):
    last = list(batches(images(corpus), global_batch=4, seed=None, epochs=1))[-1]
    assert last["mask"].tolist() == [1, 0, 0, 0]
    assert last["images"].shape == (4, 5, 4, 3)
    parts = [
        list(batches(images(corpus), global_batch=4, seed=None, epochs=1, shard=(i, 4)))[-1]
        for i in range(4)
    ]
    assert [host["mask"].tolist() for host in parts] == [[1], [0], [0], [0]]
    assert parts[2]["images"].shape == (1, 5, 4, 3)


def test_a_corrupt_image_is_masked(corpus, pixels):
    path = corpus.directory / "00000.array_record"
    content = bytearray(path.read_bytes())
    content[int(corpus._tables[0][1]["begin"]) + 30] ^= 1
    path.write_bytes(content)
    it = batches(images(Corpus(corpus.directory)), global_batch=5, seed=None, max_corrupt=1)
    batch = next(it)
    assert batch["mask"].tolist() == [1, 0, 1, 1, 1]
    assert not batch["images"][1].any()
    np.testing.assert_array_equal(batch["images"][3], pixels[3])
    assert [damaged.document for damaged in it.stats().corrupt] == [1]


def test_images_of_several_sizes_need_a_transform(tmp_path):
    records = [{"image": array, "label": 0} for array in pictures([(5, 4), (4, 4)])]
    corpus = write(Arrays(records), tmp_path / "c", encoder=Image())
    message = (
        "must have one shape and dtype: got [([4, 4, 3], 'uint8'), ([5, 4, 3], 'uint8')]. Pass"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        images(corpus).batch(np.array([0, 1]))
    cropped = images(corpus, transform=lambda image, rng: image[:4]).batch(np.array([0, 1]))
    assert cropped["images"].shape == (2, 4, 4, 3)


def test_files_are_kept_as_they_are(pixels, tmp_path):
    buffer = io.BytesIO()
    Pillow.fromarray(pixels[1]).save(buffer, "JPEG", quality=50)
    (tmp_path / "x.jpg").write_bytes(buffer.getvalue())
    records = [
        {"image": buffer.getvalue(), "label": 1},
        {"image": {"bytes": buffer.getvalue(), "path": None}, "label": 2},
        {"image": {"bytes": None, "path": str(tmp_path / "x.jpg")}, "label": 3},
    ]
    corpus = write(Arrays(records), tmp_path / "c", encoder=Image())
    assert [corpus[i]["image"].tobytes() for i in range(3)] == [buffer.getvalue()] * 3
    with Pillow.open(buffer) as opened:
        expected = np.asarray(opened.convert("RGB"))
    np.testing.assert_array_equal(images(corpus)[2]["images"], expected)


def test_explain_and_bad_modes(corpus, monkeypatch):
    assert images(corpus).explain(2) == [
        Span(document=2, start=0, length=1, source="made", record=2)
    ]
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match=r"mode must be \"RGB\" or \"L\": got mode='CMYK'. Pass"):
        images(corpus, mode="CMYK")


def test_another_corpus_is_an_error(corpus_of):
    with pytest.raises(ValueError, match=r"the field 'image': got .*'tokens'.*Write it with Image"):
        images(corpus_of([3, 4]))
