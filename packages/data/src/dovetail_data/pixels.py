# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoded images to pixels, and back."""

import io
from typing import Any, Literal

import numpy as np

from dovetail_data._arguments import require_package

Mode = Literal["RGB", "L"]


def decode(content: bytes, *, mode: Mode) -> np.ndarray:
    """Returns the pixels of an encoded image, u8[H, W, 3], or u8[H, W, 1] for "L".

    Raises:
        ValueError: Pillow cannot read `content`.
    """
    try:
        with require_pillow().open(io.BytesIO(content)) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's errors for damaged files
        raise ValueError(
            f"an image must be one that Pillow reads: got {len(content)} bytes: {error}. Mend the "
            "file or leave it out."
        ) from error
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def encode_png(pixels: np.ndarray) -> bytes:
    """Returns u8[H, W], u8[H, W, 1] or u8[H, W, 3] as a PNG file, without loss."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    buffer = io.BytesIO()
    require_pillow().fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def require_pillow() -> Any:
    """Imports PIL.Image, or raises ImportError with the name of the extra."""
    return require_package("PIL.Image", "images need", package="pillow", extra="images")
