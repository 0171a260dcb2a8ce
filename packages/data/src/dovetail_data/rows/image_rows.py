# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of images with labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.pixels import Mode, decode, require_pillow
from dovetail_data.rows.rows import Arrays, Rows, Span, generator
from dovetail_data.rows.token_rows import DocumentRows, span_of

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@_elsewhere.call
def images(corpus: Corpus, *, mode: Mode = "RGB", transform: Transform | None = None) -> Rows:
    """Returns rows of one image each.

    A batch has `images` [B, ..], `labels` i32[B], `mask` f32[B] and `image_ids` i32[B], the number
    of the image in the corpus, equal in each epoch: noise can be keyed by it, and `explain` names
    it as the document. It also has the `fields` of the encoder. Needs the extra `images`.

    Args:
        corpus: A corpus written with `Image`.
        mode: "RGB" gives u8[H, W, 3] and "L" (grey) u8[H, W, 1], whatever the file holds.
        transform: Receives one such array and a random generator. Returns an array for the batch;
            all must have one shape and dtype. The generator depends on the seed of `batches` and
            the row's place in the order alone: the same pixels on any number of hosts, others in
            each epoch.

    Returns:
        The rows. A batch raises ValueError if its images differ in shape or dtype.

    Raises:
        TypeError: `corpus` is not a `Corpus`, such as a path.
        ValueError: `mode` is unknown, or the corpus has no images.
        ImportError: Pillow is missing.

    Example:

        >>> from pathlib import Path
        >>> import PIL.Image
        >>> from dovetail_data import Image, images, jsonl, write
        >>> PIL.Image.new("L", (3, 2)).save("digit.png")
        >>> record = '{"image": {"bytes": null, "path": "digit.png"}, "label": 7}'
        >>> _ = Path("d.jsonl").write_text(record)
        >>> rows = images(write(jsonl("d.jsonl"), "digits", encoder=Image()))
        >>> rows[0]["images"].shape, rows[0]["labels"].item()
        ((2, 3, 3), 7)
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f'mode must be "RGB" or "L": got mode={mode!r}. Pass one of the two.')
    return ImageRows(corpus, mode=mode, transform=transform)


class ImageRows(DocumentRows):
    """Rows of images, as `images` returns them: row i is image i of the corpus.

    Args:
        corpus: The images.
        mode: "RGB" or "L".
        transform: See `images`.
    """

    length = 1

    def __init__(self, corpus: Corpus, *, mode: Mode, transform: Transform | None) -> None:
        needs = "image", "Write it with Image."
        super().__init__(corpus, f"images/{mode}", needs=needs, values=True)
        require_pillow()
        self.tokens = len(corpus)
        self._mode: Mode = mode
        self._transform = transform

    def _stacked(
        self, rows: np.ndarray, documents: list[Arrays | None], keys: np.ndarray
    ) -> Arrays:
        pixels = [
            None if document is None else self._pixels(document["image"], key)
            for document, key in zip(documents, keys.tolist(), strict=True)
        ]
        like = self._like(pixels)
        stacked = np.zeros((len(rows), *like.shape), like.dtype)
        for i, array in enumerate(pixels):
            if array is not None:
                stacked[i] = array
        values = self._values.empty(len(rows), slots=1)
        for name, array in values.items():
            for i, document in enumerate(documents):
                if document is not None:
                    array[i] = document[name]
        labels = [0 if document is None else int(document["label"]) for document in documents]
        return {
            "images": stacked,
            "labels": np.array(labels, np.int32),
            "mask": np.array([document is not None for document in documents], np.float32),
            "image_ids": rows.astype(np.int32),
            **values,
        }

    def explain(self, row: int) -> list[Span]:
        self._check_row(row)
        return [span_of(self.corpus, row, start=0, length=1)]

    def _pixels(self, encoded: np.ndarray, key: int) -> np.ndarray:
        image = decode(encoded.tobytes(), mode=self._mode)
        return image if self._transform is None else self._transform(image, generator(key))

    def _like(self, pixels: list[np.ndarray | None]) -> np.ndarray:
        """Returns zeros of the shape and dtype that all `pixels` share.

        Without any, another row decides, because a host may have to fill a whole batch.
        """
        known = [array for array in pixels if array is not None]
        if not known:
            first = next(self._readable())
            known = [self._pixels(first, 0)]
        kinds = {(array.shape, array.dtype) for array in known}
        if len(kinds) > 1:
            raise ValueError(
                "all images of a batch must have one shape and dtype: got "
                f"{sorted((list(shape), str(dtype)) for shape, dtype in kinds)[:3]}. Pass "
                "images(transform=...) a function that resizes or crops them."
            )
        return np.zeros_like(known[0])

    def _readable(self) -> Iterator[np.ndarray]:
        for i in range(len(self.corpus)):
            (document,) = self.corpus.read(np.array([i]), corrupt=[])
            if document is not None:
                yield document["image"]
