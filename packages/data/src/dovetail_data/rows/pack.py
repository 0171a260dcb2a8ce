# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of fixed length, made from documents of any length.

A slot holds one token and its target, so a document of n ids takes n - 1 slots. A cut document
repeats its boundary id: the last target of one piece is the first token of the next. Every method
therefore yields the same tokens and targets. Rows are an index made from lengths alone; ids are
read with the row.
"""

from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integer, require_path
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.rows import index_file as _index_file
from dovetail_data.rows.best_fit import best_fit
from dovetail_data.rows.first_fit import first_fit
from dovetail_data.rows.order import Permutation
from dovetail_data.rows.rows import Rows
from dovetail_data.rows.token_rows import SpanTable, TokenRows, require_field

Method = Literal["best_fit", "first_fit", "concat"]


@_elsewhere.pack
def pack(
    corpus: Corpus,
    *,
    length: int,
    method: Method = "best_fit",
    seed: int = 0,
    index: str | Path | None = None,
) -> Rows:
    """Packs documents into rows of `length` slots, several in each. No token loses its target.

    A document of n ids fills n - 1 slots. Longer documents are cut, and each piece is a segment of
    its own: positions start at 0.

    Args:
        corpus: A corpus with tokens, written with `Text` or `Chat`.
        length: Slots per row.
        method: "best_fit" fills rows best: it places pieces from the longest to the shortest, each
            into the row with the least sufficient room. "first_fit" takes documents in an order
            drawn by `seed`, and puts each piece into the first row with room. In both, a document
            longer than a row fills rows of its own, and its rest is packed with the others; their
            time grows with the number of documents, 1 us each for "first_fit". "concat" lays the
            documents end to end, in an order drawn by `seed`, and cuts every `length` slots: only
            the last row is not full, and the rows follow the order of the documents.
        seed: Seed of the order of documents ("first_fit", "concat"), of the choice among documents
            of one length ("best_fit"), and of the order of rows (both fits).
        index: Directory for the finished index, created if need be. Later calls map it into memory,
            and any number of processes share it. None packs anew in each process.

    Returns:
        The rows. `rows.fill` is the fraction of filled slots.

    Raises:
        TypeError: `corpus` is not a `Corpus`, such as a path.
        ValueError: An option is out of range, the corpus has no tokens or no document of two ids,
            or a file in `index` is damaged.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> pack(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=8)
        TokenRows(rows=6, length=8, fill=0.8958)
    """
    if method not in get_args(Method):
        raise ValueError(
            f"method must be one of {', '.join(get_args(Method))}: got method={method!r}. Pass "
            '"best_fit" for the fullest rows.'
        )
    require_integer("seed", seed, "Pass 0 for the usual one.")
    directory = None if index is None else require_path("index", index)
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

    if directory is None:
        table = build()
    else:
        of = {
            "corpus": corpus.fingerprint,
            "packing": f"{method} length={length} seed={seed}",
        }
        table = _index_file.load(directory, of=of, build=build)
    return TokenRows(corpus, table, length=length, whole=False)


@_elsewhere.pad
def pad(corpus: Corpus, *, length: int) -> Rows:
    """Puts one document into each row, in the order of the corpus, and pads the rest.

    Args:
        corpus: A corpus with tokens, written with `Text` or `Chat`.
        length: Slots per row. Nothing is cut, so the longest document decides: it has n ids and
            needs n - 1 slots.

    Raises:
        TypeError: `corpus` is not a `Corpus`, such as a path.
        ValueError: A document does not fit, `length` is below 1, or the corpus has no tokens.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> pad(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=64)
        TokenRows(rows=1, length=64, fill=0.6719)
    """
    _check(corpus, length)
    pieces = _cut(corpus, length)
    cut = np.flatnonzero(pieces.start)
    if len(cut):
        document = int(pieces.document[cut[0]])
        needed = int(corpus.lengths[document]) - 1
        raise ValueError(
            f"a document must fit its row: got document={document} ({corpus.source(document)[0]}) "
            f"of {needed} slots, length={length}. Pass length={int(corpus.lengths.max()) - 1}, "
            "or use pack, which cuts without losing a target."
        )
    return TokenRows(corpus, pieces, length=length, whole=True)


def _check(corpus: Corpus, length: int) -> None:
    require_integer("length", length, "Pass the slots per row, such as length=2048.", least=1)
    require_field(corpus, "tokens", "Write it with Text or Chat, or use pairs or images.")
    if not (corpus.lengths > 1).any():
        raise ValueError(
            f"a corpus must have a document of two ids: got {len(corpus)} documents of at most "
            "one id. Use an encoder that ends documents with eos."
        )


def _slots(corpus: Corpus) -> np.ndarray:
    """Returns the slots that each document takes: one for each target."""
    return np.maximum(corpus.lengths.astype(np.int64) - 1, 0)


def _order(corpus: Corpus, seed: int) -> np.ndarray:
    return Permutation(len(corpus), key=f"documents/{seed}")(np.arange(len(corpus)))


def _cut(corpus: Corpus, length: int) -> SpanTable:
    """Cuts every document into pieces of at most `length` targets, one piece per row."""
    slots = _slots(corpus)
    count = -(-slots // length)
    document = np.repeat(np.arange(len(slots)), count)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)) * length
    return SpanTable(
        document.astype(np.int32),
        start.astype(np.int32),
        np.minimum(slots[document] - start, length).astype(np.int32),
        np.arange(len(document) + 1),
    )


def _concat(corpus: Corpus, *, length: int, seed: int) -> SpanTable:
    """Lays the documents end to end in the seed's order and cuts every `length` slots."""
    slots = _slots(corpus)
    documents = _order(corpus, seed)
    documents = documents[slots[documents] > 0]
    ends = np.cumsum(slots[documents])
    begins = ends - slots[documents]
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
    """Groups the pieces by first fit, in this order of the documents."""
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
    """Groups the pieces by best fit; those of one length come in the seed's order."""
    shuffled = Permutation(len(pieces.length), key=f"pieces/{seed}")(np.arange(len(pieces.length)))
    by_length = shuffled[np.argsort(pieces.length[shuffled], kind="stable")]
    counts = np.bincount(pieces.length, minlength=length + 1)
    used = np.cumsum(counts) - counts  # first unused piece of each length
    rows: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    for group in best_fit(counts, length=length):
        columns = []
        for size, each in group.items:
            end = used[size] + group.count * each
            columns.append(by_length[used[size] : end].reshape(group.count, each))
            used[size] = end
        members = np.concatenate(columns, axis=1)
        rows.append(members.reshape(-1))
        sizes.append(np.full(group.count, members.shape[1]))
    return _table(pieces, np.concatenate(rows), np.concatenate(sizes))


def _table(pieces: SpanTable, members: np.ndarray, sizes: np.ndarray) -> SpanTable:
    """Returns rows of sizes[r] pieces each, taken from `members` in order."""
    return SpanTable(
        pieces.document[members],
        pieces.start[members],
        pieces.length[members],
        np.concatenate([[0], np.cumsum(sizes)]),
    )


def _permute(table: SpanTable, *, key: str) -> SpanTable:
    n = len(table.offsets) - 1
    spans, sizes = table.of(Permutation(n, key=key)(np.arange(n)))
    return _table(table, spans, sizes)
