# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`media.jsonl`: texts, images and histograms of a run, a line for each.

The pixels of an image are a PNG file beside it, named by its digest, written before the line.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from dovetail_runs.events import read_lines

FILE, FOLDER = "media.jsonl", "media"
BINS = 30
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_OF_IMAGE = re.compile(rf"{FOLDER}/[0-9a-f]{{16}}\.png")


@dataclass(frozen=True, kw_only=True)
class Medium:
    """A text, an image or a histogram of a step.

    Attributes:
        name: Its name; a series has one for all steps.
        step: Number of the step.
        time_s: Unix time at which it was written.
    """

    name: str
    step: int
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Text(Medium):
    """A text of a step, such as a sample of a language model."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Image(Medium):
    """An image of a step. Attribute `file`: the PNG file."""

    file: Path


@dataclass(frozen=True, kw_only=True)
class Histogram(Medium):
    """A histogram of a step.

    Attributes:
        counts: i64[n], finite values in each bin.
        edges: f64[n + 1], rising.
        lost: Number of values that were not finite.
    """

    counts: Int64[np.ndarray, " n"]
    edges: Float64[np.ndarray, " m"]
    lost: int = 0


def text_line(text: Any) -> dict[str, Any]:
    """Returns the entries of a line for a text. TypeError if it is none."""
    if not isinstance(text, str):
        raise TypeError(
            f"a text must be a string, got {text!r:.100} of type {type(text).__name__}: write str()"
        )
    return {"text": text}


def histogram_line(values: Any, bins: int) -> dict[str, Any]:
    """Returns the entries of a line for the histogram of an array.

    Args:
        values: Numbers of any shape.
        bins: Number of bins of equal width, from the least to the largest finite value.

    Raises:
        ValueError: No value is finite, or there are no bins.
    """
    numbers = np.asarray(values, np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    if not finite.size or bins < 1:
        raise ValueError(
            f"a histogram needs finite values and bins, got {finite.size} of {numbers.size} values "
            f"that are finite, bins={bins}: leave it out, or pass bins={BINS}"
        )
    counts, edges = np.histogram(finite, bins)
    lost = int(numbers.size - finite.size)
    return {"counts": counts.tolist(), "edges": edges.tolist()} | ({"lost": lost} if lost else {})


def image_line(pixels: Any, run: Path) -> dict[str, Any]:
    """Writes an image, and returns the entries of its line.

    Args:
        pixels: u8[h, w], or u8[h, w, c] with 1, 3 or 4 channels; or floats in [0, 1].
        run: Folder of the run.

    Raises:
        ValueError: The shape or the values do not fit.
        ImportError: Pillow is missing.
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError(
            f"images need the package pillow, which cannot be imported ({error}): "
            "pip install 'dovetail-runs[images]'"
        ) from error
    array = _bytes(np.asarray(pixels))
    data = io.BytesIO()
    PIL.Image.fromarray(array.squeeze(2) if array.shape[2:] == (1,) else array).save(data, "PNG")
    name = f"{hashlib.sha256(data.getvalue()).hexdigest()[:16]}.png"
    file = run / FOLDER / name
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        partial = file.with_name(f"{name}.partial")
        partial.write_bytes(data.getvalue())
        os.replace(partial, file)
    return {"image": f"{FOLDER}/{name}"}


def _bytes(array: np.ndarray) -> np.ndarray:
    """Returns pixels as u8. ValueError for another shape or range."""
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _CHANNELS)
    whole, floats = array.dtype == np.uint8, array.dtype.kind == "f"
    if floats and array.size:
        floats = bool((array >= 0).all() and (array <= 1).all())  # also false for NaN
    if not (fits and array.size and (whole or floats)):
        raise ValueError(
            f"pixels must be u8[h, w] or u8[h, w, 1, 3 or 4], or floats in [0, 1], got "
            f"{array.dtype}{list(array.shape)}: convert them, as by (x - x.min()) / np.ptp(x)"
        )
    return array if whole else np.rint(array * 255).astype(np.uint8)


def read_media(run: Path) -> tuple[list[Medium], list[str]]:
    """Returns what a run has, by step, and a message for each damaged line.

    Of several lines with one name and step the last counts. An incomplete last line is left out.

    Args:
        run: Folder of the run.
    """
    lines, damage = read_lines(
        run / FILE, lambda line: _parsed(line, run), "text, image or histogram"
    )
    media = {(medium.name, medium.step, type(medium)): medium for medium in lines}
    return sorted(media.values(), key=lambda medium: medium.step), damage


def _parsed(line: Mapping[str, Any], run: Path) -> Medium:
    head = {"name": str(line["name"]), "step": int(line["step"]), "time_s": float(line["time_s"])}
    for kind, make in _KINDS.items():
        if kind in line:
            return make(line, head, run)
    raise KeyError("text")


def _histogram(line: Mapping[str, Any], head: dict[str, Any]) -> Histogram:
    counts, edges = np.array(line["counts"], np.int64), np.array(line["edges"], np.float64)
    if edges.ndim != 1 or edges.shape != (len(counts) + 1,) or not np.isfinite(edges).all():
        raise ValueError(edges.shape)
    return Histogram(**head, counts=counts, edges=edges, lost=int(line.get("lost", 0)))


def _file(name: str) -> str:
    """Returns the name of an image. ValueError for a file of elsewhere, which no page may show."""
    if not _OF_IMAGE.fullmatch(name):
        raise ValueError(name)
    return name


_KINDS: dict[str, Callable[[Mapping[str, Any], dict[str, Any], Path], Medium]] = {
    "text": lambda line, head, _: Text(**head, text=str(line["text"])),
    "image": lambda line, head, run: Image(**head, file=run / _file(line["image"])),
    "counts": lambda line, head, _: _histogram(line, head),
}
