# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import io
import re
import sys

import numpy as np
import pytest
from PIL import Image

from dovetail_data.pixels import decode, encode_png

GREY = np.random.default_rng(0).integers(0, 256, (3, 5), np.uint8)
COLOURED = np.random.default_rng(1).integers(0, 256, (3, 5, 3), np.uint8)


def test_png_keeps_every_pixel():
    np.testing.assert_array_equal(decode(encode_png(COLOURED), mode="RGB"), COLOURED)
    np.testing.assert_array_equal(decode(encode_png(GREY), mode="L")[..., 0], GREY)
    assert encode_png(GREY[..., None]) == encode_png(GREY)
    np.testing.assert_array_equal(decode(encode_png(GREY), mode="RGB"), np.stack([GREY] * 3, -1))
    assert decode(encode_png(GREY[:1, :1]), mode="L").shape == (1, 1, 1)


def test_color_becomes_grey_by_its_luma():
    grey = decode(encode_png(COLOURED), mode="L")[..., 0].astype(float)
    luma = COLOURED @ np.array([0.299, 0.587, 0.114])  # ITU-R 601-2, which Pillow rounds
    np.testing.assert_allclose(grey, luma, atol=1)


def test_other_kinds_of_files_give_the_same_axes():
    buffer = io.BytesIO()
    alpha = np.concatenate([COLOURED, np.full((3, 5, 1), 255, np.uint8)], axis=2)
    Image.fromarray(alpha).save(buffer, "PNG")
    np.testing.assert_array_equal(decode(buffer.getvalue(), mode="RGB"), COLOURED)


@pytest.mark.parametrize("content", [b"", b"no image", encode_png(COLOURED)[:-30]])
def test_what_is_no_whole_image_is_an_error(content):
    message = f"must be one that Pillow reads: got {len(content)} bytes: "
    with pytest.raises(ValueError, match=re.escape(message) + r".*Mend the file or leave it out"):
        decode(content, mode="RGB")


def test_a_missing_pillow_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"not installed: pip install 'dovetail-data\[images\]'"):
        encode_png(GREY)
