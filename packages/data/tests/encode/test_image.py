# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from dovetail_data import Corrupt, Image, jsonl, write
from dovetail_data.pixels import encode_png

PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6)


def test_an_array_becomes_a_png_and_a_label():
    (document,) = Image(label="kind")([{"image": PIXELS, "kind": np.int64(4)}])
    assert document.arrays["image"].tobytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert document.arrays["label"] == 4


@pytest.mark.parametrize(
    "record, message",
    [
        ({"image": PIXELS}, "an integer under label='label': got fields ['image'], there None."),
        ({"image": PIXELS, "label": True}, "an integer under label='label': got"),
        ({"image": PIXELS, "label": "3"}, "there '3'. Pass Image(label=...) its name."),
        ({"label": 3}, "or u8[H, W(, 3)]: got NoneType under field='image'. Pass"),
        ({"image": PIXELS * 1.0, "label": 3}, "or u8[H, W(, 3)]: got ndarray under field='image'"),
        ({"image": b"GIF89a?", "label": 3}, "that Pillow reads: got 7 bytes: "),
        ({"image": {"bytes": None, "path": "/no/such.png"}, "label": 3}, "No such file"),
    ],
)
def test_what_is_no_image_is_corrupt_in_its_place(record, message):
    good = {"image": PIXELS, "label": 1}
    first, second, third = Image()([good, record, good])
    assert isinstance(second, Corrupt)
    assert message in second.error
    assert (first.arrays["label"], third.arrays["label"]) == (1, 1)


def test_a_cut_file_is_corrupt():
    whole = encode_png(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8))
    (result,) = Image()([{"image": whole[: len(whole) // 2], "label": 0}])
    assert isinstance(result, Corrupt)
    assert "must be one that Pillow reads: got" in result.error
    assert "Mend the file or leave it out." in result.error


def test_the_fingerprint_follows_the_fields():
    names = {Image().fingerprint, Image(field="png").fingerprint, Image(label="kind").fingerprint}
    assert len(names) == 3


def test_paths_are_relative_to_the_file_of_the_records(tmp_path, monkeypatch):
    """The working directory is another one, with another picture of the same name."""
    pictures = [PIXELS, PIXELS + 1, PIXELS + 2]
    for name, pixels in zip(["here/a.png", "here/sub/b.png", "c.png"], pictures, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encode_png(pixels))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.png").write_bytes(encode_png(PIXELS + 9))
    monkeypatch.chdir(tmp_path / "elsewhere")
    given = [
        "a.png",
        {"bytes": None, "path": "sub/b.png"},
        {"path": "../c.png"},
        str(tmp_path / "c.png"),
        {"bytes": None, "path": "no.png"},
    ]
    rows = [{"image": image, "label": i} for i, image in enumerate(given)]
    (tmp_path / "here" / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = write(jsonl("../here/in.jsonl"), "corpus", encoder=Image(), max_corrupt=1)
    own = [corpus[i]["image"].tobytes() for i in range(4)]
    assert own == [encode_png(pictures[i]) for i in (0, 1, 2, 2)]
    (lost,) = corpus.corrupt
    assert lost.where == "in.jsonl:5"
    assert f"got '{tmp_path / 'here' / 'no.png'}': No such file" in lost.error
