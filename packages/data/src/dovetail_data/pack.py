# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of fixed length, made from documents of any length.

The unit is the (token, target) pair: a document of n ids has n - 1. Where a document is cut, the
boundary id is the last target of one piece and the first input of the next, so that every method
yields the same pairs. Rows are an index made from lengths alone; ids are read when a row is.
"""

from typing import Literal

import numpy as np

from dovetail_data._best_fit import best_fit
from dovetail_data.corpus import Corpus
from dovetail_data.order import Permutation
from dovetail_data.rows import Rows
from dovetail_data.spans import SpanTable
from dovetail_data.token_rows import TokenRows

Method = Literal["best_fit"]


def pack(corpus: Corpus, *, length: int, method: Method = "best_fit", seed: int = 0) -> Rows:
    """Rows of `length` pairs, several documents in each, no pair lost.

    A document of more pairs than `length` fills rows of its own; its rest is packed with the rest
    of the others by best fit. seed: draws which documents of one length share a row, and the order
    of the rows. Pieces of a cut document are segments of their own: positions start at 0 in each.
    """
    if method != "best_fit":
        raise ValueError(f'method must be "best_fit": got method={method!r}. Pass that one.')
    pieces = _cut(corpus, length)
    table = _fill(pieces, length=length, seed=seed)
    return TokenRows(corpus, table, length=length)


def pad(corpus: Corpus, *, length: int) -> Rows:
    """One document per row, in the order of the corpus, the rest of the row padding.

    A document of more than `length` pairs is a ValueError: nothing is cut.
    """
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


def _cut(corpus: Corpus, length: int) -> SpanTable:
    """Every document's pairs in pieces of at most `length`, one piece per row."""
    if length < 1:
        raise ValueError(f"length must be >= 1: got length={length}. Pass the slots of a row.")
    pairs = np.maximum(corpus.lengths.astype(np.int64) - 1, 0)
    if not pairs.any():
        raise ValueError(
            f"a corpus must have a pair of ids: got {len(pairs)} documents of at most one id. "
            "Use an encoder that ends documents with eos."
        )
    count = -(-pairs // length)
    document = np.repeat(np.arange(len(pairs)), count)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)) * length
    return SpanTable(
        document.astype(np.int32),
        start.astype(np.int32),
        np.minimum(pairs[document] - start, length).astype(np.int32),
        np.arange(len(document) + 1),
    )


def _fill(pieces: SpanTable, *, length: int, seed: int) -> SpanTable:
    """The same pieces, grouped into rows by best fit and permuted."""
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
    flat, size = np.concatenate(chosen), np.concatenate(sizes)
    rows = SpanTable(
        pieces.document[flat],
        pieces.start[flat],
        pieces.length[flat],
        np.concatenate([[0], np.cumsum(size)]),
    )
    return _permute(rows, Permutation(len(size), key=f"packed/{seed}")(np.arange(len(size))))


def _permute(table: SpanTable, rows: np.ndarray) -> SpanTable:
    spans, sizes = table.of(rows)
    return SpanTable(
        table.document[spans],
        table.start[spans],
        table.length[spans],
        np.concatenate([[0], np.cumsum(sizes)]),
    )
