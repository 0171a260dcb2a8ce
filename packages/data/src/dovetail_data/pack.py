# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of fixed length, made from documents of any length.

The unit is the (token, target) pair: a document of n ids has n - 1. Where a document is cut, the
boundary id is the last target of one piece and the first input of the next, so that every method
yields the same pairs. Rows are an index made from lengths alone; ids are read when a row is.
"""

from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dovetail_data import _index_file
from dovetail_data._best_fit import best_fit
from dovetail_data._first_fit import first_fit
from dovetail_data.corpus import Corpus
from dovetail_data.order import Permutation
from dovetail_data.rows import Rows
from dovetail_data.spans import SpanTable
from dovetail_data.token_rows import TokenRows, require_field

Method = Literal["best_fit", "first_fit", "concat"]


def pack(
    corpus: Corpus,
    *,
    length: int,
    method: Method = "best_fit",
    seed: int = 0,
    index: str | Path | None = None,
) -> Rows:
    """Rows of `length` pairs, several documents in each, no pair lost.

    "best_fit" fills rows best: pieces go, the longest first, where they leave the least room.
    "first_fit" takes documents in an order drawn by `seed`, each piece to the first open row that
    holds it. Both give a document of more pairs than `length` rows of its own and pack its rest
    with the rest of the others; they take time in proportion to documents, 1 us each for first
    fit. "concat" lays documents, in an order drawn by `seed`, end to end and cuts every `length`
    pairs: only the last row is not full, and rows follow each other as the documents do.

    seed: draws also which documents of one length share a row, and the order of the rows of the
    two fits. Pieces of a cut document are segments of their own: positions start at 0 in each.

    index: a directory, made if need be, that keeps the spans: written there once, and mapped into
    memory from then on, by any number of processes. A damaged file there is a ValueError. None
    packs anew in each process.
    """
    if method not in get_args(Method):
        raise ValueError(
            f"method must be one of {', '.join(get_args(Method))}: got method={method!r}. Pass "
            '"best_fit" for the fullest rows.'
        )
    _check(corpus, length)

    def build() -> SpanTable:
        if method == "concat":
            return _concat(corpus, length=length, seed=seed)
        pieces = _cut(corpus, length)
        if method == "best_fit":
            rows = _best_fit(pieces, length=length, seed=seed)
        else:
            rows = _first_fit(pieces, length=length, order=_order(corpus, seed))
        return _permute(rows, key=f"packed/{seed}")

    if index is None:
        table = build()
    else:
        of = {
            "corpus": corpus.fingerprint,
            "packing": f"{method} length={length} seed={seed}",
        }
        table = _index_file.load(Path(index), of=of, build=build)
    return TokenRows(corpus, table, length=length)


def pad(corpus: Corpus, *, length: int) -> Rows:
    """One document per row, in the order of the corpus, the rest of the row padding.

    A document of more than `length` pairs is a ValueError: nothing is cut.
    """
    _check(corpus, length)
    pieces = _cut(corpus, length)
    cut = np.flatnonzero(pieces.start)
    if len(cut):
        document = int(pieces.document[cut[0]])
        pairs = int(corpus.lengths[document]) - 1
        raise ValueError(
            f"a document must fit its row: got document={document} ({corpus.source(document)[0]}) "
            f"with {pairs} pairs, length={length}. Pass length={int(corpus.lengths.max()) - 1}, "
            "or use pack, which cuts without losing a pair."
        )
    return TokenRows(corpus, pieces, length=length)


def _check(corpus: Corpus, length: int) -> None:
    if length < 1:
        raise ValueError(f"length must be >= 1: got length={length}. Pass the slots of a row.")
    require_field(corpus, "tokens", "Write it with Text or Chat, or use pairs or images.")
    if not (corpus.lengths > 1).any():
        raise ValueError(
            f"a corpus must have a pair of ids: got {len(corpus)} documents of at most one id. "
            "Use an encoder that ends documents with eos."
        )


def _pairs(corpus: Corpus) -> np.ndarray:
    return np.maximum(corpus.lengths.astype(np.int64) - 1, 0)


def _order(corpus: Corpus, seed: int) -> np.ndarray:
    return Permutation(len(corpus), key=f"documents/{seed}")(np.arange(len(corpus)))


def _cut(corpus: Corpus, length: int) -> SpanTable:
    """Every document's pairs in pieces of at most `length`, one piece per row."""
    pairs = _pairs(corpus)
    count = -(-pairs // length)
    document = np.repeat(np.arange(len(pairs)), count)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)) * length
    return SpanTable(
        document.astype(np.int32),
        start.astype(np.int32),
        np.minimum(pairs[document] - start, length).astype(np.int32),
        np.arange(len(document) + 1),
    )


def _concat(corpus: Corpus, *, length: int, seed: int) -> SpanTable:
    """The documents in the seed's order, end to end, cut every `length` pairs."""
    pairs = _pairs(corpus)
    documents = _order(corpus, seed)
    documents = documents[pairs[documents] > 0]
    ends = np.cumsum(pairs[documents])
    begins = ends - pairs[documents]
    first, last = begins // length, (ends - 1) // length  # the rows that a document lies in
    count = last - first + 1
    row = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - first, count)
    start = np.maximum(np.repeat(begins, count), row * length)
    stop = np.minimum(np.repeat(ends, count), (row + 1) * length)
    return SpanTable(
        np.repeat(documents, count).astype(np.int32),
        (start - np.repeat(begins, count)).astype(np.int32),
        (stop - start).astype(np.int32),
        np.searchsorted(row, np.arange(row[-1] + 2)),
    )


def _first_fit(pieces: SpanTable, *, length: int, order: np.ndarray) -> SpanTable:
    """The same pieces, grouped by first fit, in this order of the documents."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    coming = np.argsort(place[pieces.document], kind="stable")
    sizes = pieces.length[coming].astype(np.int64)
    full = sizes == length  # each opens a row and closes it: out of the search's way
    bins = np.empty(len(sizes), np.int64)
    bins[~full] = first_fit(sizes[~full], length=length)
    opened = int(bins[~full].max(initial=-1)) + 1
    bins[full] = np.arange(opened, opened + full.sum())
    grouped = np.argsort(bins, kind="stable")
    return _table(pieces, coming[grouped], np.bincount(bins))


def _best_fit(pieces: SpanTable, *, length: int, seed: int) -> SpanTable:
    """The same pieces, grouped by best fit, those of one length in the seed's order."""
    shuffled = Permutation(len(pieces.length), key=f"pieces/{seed}")(np.arange(len(pieces.length)))
    by_length = shuffled[np.argsort(pieces.length[shuffled], kind="stable")]
    counts = np.bincount(pieces.length, minlength=length + 1)
    used = np.cumsum(counts) - counts  # where the unused pieces of each length begin
    chosen: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    for group in best_fit(counts, length=length):
        columns = []
        for size, each in group.items:
            end = used[size] + group.count * each
            columns.append(by_length[used[size] : end].reshape(group.count, each))
            used[size] = end
        members = np.concatenate(columns, axis=1)
        chosen.append(members.reshape(-1))
        sizes.append(np.full(group.count, members.shape[1]))
    return _table(pieces, np.concatenate(chosen), np.concatenate(sizes))


def _table(pieces: SpanTable, chosen: np.ndarray, sizes: np.ndarray) -> SpanTable:
    """Rows of sizes[r] pieces each, taken from `chosen` in order."""
    return SpanTable(
        pieces.document[chosen],
        pieces.start[chosen],
        pieces.length[chosen],
        np.concatenate([[0], np.cumsum(sizes)]),
    )


def _permute(table: SpanTable, *, key: str) -> SpanTable:
    n = len(table.offsets) - 1
    spans, sizes = table.of(Permutation(n, key=key)(np.arange(n)))
    return _table(table, spans, sizes)
