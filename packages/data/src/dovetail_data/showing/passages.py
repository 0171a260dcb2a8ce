# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A row as passages: its segments as text, each with its origin."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dovetail_data.corpus.corpus import CorruptDocument
from dovetail_data.mixture.mix import Mixture
from dovetail_data.pixels import encode_png
from dovetail_data.rows.contrast_rows import ContrastRows
from dovetail_data.rows.rows import Arrays, MappedRows, Rows, Span
from dovetail_data.tokenizing.pieces import Piece, Reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """One segment of a row.

    Args:
        title: Its origin.
        pieces: Its text.
        error: The reason why it has no pieces, if it has none.
    """

    title: str
    pieces: tuple[Piece, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownRow:
    """One row, readable.

    Args:
        row: Number of the row.
        summary: Its filled and trained slots, in words.
        passages: Its segments.
        side_by_side: Whether the passages are to be compared.
        notes: Other contents by name.
        png: Its picture, for an image.
    """

    row: int
    summary: str
    passages: tuple[Passage, ...]
    side_by_side: bool = False
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    png: bytes | None = None


def read_row(rows: Rows, row: int, *, reader: Callable[[Rows], Reader]) -> ShownRow:
    """Returns row `row` of `rows`, readable.

    Args:
        rows: The rows.
        row: Number of the row.
        reader: Returns the reader of ids for the rows of one corpus.
    """
    corrupt: list[CorruptDocument] = []
    batch = rows.batch(np.array([row]), corrupt=corrupt)
    errors = {bad.document: f"corrupt: {bad.error}, in {bad.shard}" for bad in corrupt}
    spans, origin = rows.explain(row), _origin(rows, row)
    sides = ("chosen", "rejected") if "pair_ids" in batch else ()
    if isinstance(origin, ContrastRows):
        sides = origin.texts
    if "images" in batch:
        return _image(row, batch, span=spans[0], error=errors.get(spans[0].document, ""))
    if sides:
        passages = _sides(batch, spans[0], sides, error=errors.get(spans[0].document, ""))
    else:
        passages = _segments(batch, spans, errors=errors)
    known = reader(origin)
    notes = {}
    slots, held = batch["tokens"].size, int(np.count_nonzero(batch["segment_ids"]))
    if "prompt_ids" in batch and not errors:
        (extra,) = rows.extra(batch["prompt_ids"])
        notes["extra"] = json.dumps(extra, ensure_ascii=False, indent=2)
    if held < slots:
        notes["empty"] = f"{slots - held} of {slots} slots"
    counted = int(np.count_nonzero(batch.get("mask", 0)))
    return ShownRow(
        row=row,
        summary=f"{held} of {slots} slots filled, {counted} learnt",
        passages=tuple(
            Passage(title=title, pieces=known.pieces(ids, mask), error=error)
            for title, ids, mask, error in passages
        ),
        side_by_side=bool(sides),
        notes=notes,
    )


_Read = tuple[str, list[int], list[float], str]  # title, ids, their mask, error
_ABSENT = "not in the row: the function of map took it out"


def _segments(batch: Arrays, spans: list[Span], *, errors: Mapping[int, str]) -> list[_Read]:
    """Returns the segments of the only row of `batch`."""
    slots = {name: batch[name] for name in ("tokens", "targets", "mask") if name in batch}
    out = []
    for segment, span in enumerate(spans, start=1):
        inside = batch["segment_ids"][0] == segment
        error = "" if inside.any() else errors.get(span.document, _ABSENT)
        title = _where(span)
        if "targets" in batch:
            title += f", targets {span.start} to {span.start + span.length - 1}"
        out.append((title, *_ids({name: array[0][inside] for name, array in slots.items()}), error))
    return out


def _sides(batch: Arrays, span: Span, sides: Sequence[str], *, error: str) -> list[_Read]:
    """Returns the rows of one record, such as a preference pair.

    Args:
        batch: The rows.
        span: Origin of the record.
        sides: Name of each row.
        error: The reason why they are empty, if they are damaged.
    """
    slots = {name: batch[name] for name in ("tokens", "targets", "mask") if name in batch}
    out = []
    for i, side in enumerate(sides):
        inside = batch["segment_ids"][i] == 1
        read = _ids({name: array[i][inside] for name, array in slots.items()})
        out.append((f"{side}: {_where(span)}", *read, error))
    return out


def _ids(segment: Arrays) -> tuple[list[int], list[float]]:
    """Returns the ids of a segment, targets included, and the mask of each as a target."""
    tokens = segment["tokens"]
    if "targets" not in segment or not len(tokens):
        return tokens.tolist(), [0.0] * len(tokens)
    ids = np.concatenate([tokens[:1], segment["targets"]])
    return ids.tolist(), [0.0, *segment["mask"].tolist()]


def _image(row: int, batch: Arrays, *, span: Span, error: str) -> ShownRow:
    (pixels,) = batch["images"]
    size = f"{pixels.dtype}{list(pixels.shape)}"
    png, notes = None, {}
    if not error:
        png, notes = _picture(pixels)
    return ShownRow(
        row=row,
        summary=f"image {size}, label {batch['labels'][0]}",
        passages=(Passage(title=_where(span), error=error),),
        notes=notes,
        png=png,
    )


def _picture(pixels: np.ndarray) -> tuple[bytes | None, dict[str, str]]:
    """Returns a PNG of a transformed image, and notes about the conversion."""
    notes = {}
    plane = pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    if not (plane.ndim == 2 or (plane.ndim == 3 and plane.shape[2] == 3)) or not plane.size:
        return None, {"picture": "none: the shape is not that of one"}
    if plane.dtype != np.uint8:
        low, high = float(plane.min()), float(plane.max())
        if not np.isfinite([low, high]).all():
            return None, {"picture": f"none: pixels from {low} to {high}"}
        notes["picture"] = f"pixels from {low:g} to {high:g} shown from black to white"
        plane = (plane.astype(np.float64) - low) * (255 / ((high - low) or 1))
    return encode_png(plane.round().astype(np.uint8)), notes


def _where(span: Span) -> str:
    mixed = f"{span.mixed}, " if span.mixed else ""
    return f"{mixed}document {span.document} (record {span.record} of {span.source})"


def _origin(rows: Rows, row: int) -> Rows:
    """Returns the rows of one corpus that hold row `row`."""
    while isinstance(rows, MappedRows | Mixture):
        if isinstance(rows, MappedRows):
            rows = rows.rows
            continue
        for source in rows.sources.values():
            if row < len(source):
                rows = source
                break
            row -= len(source)
    return rows
