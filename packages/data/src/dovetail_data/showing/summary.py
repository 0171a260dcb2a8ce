# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about a corpus, as JSON values and as lines."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail_data.corpus.corpus import Corpus
from dovetail_data.rows.rows import Rows
from dovetail_data.showing.visible import visible

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_BAR = 40  # characters of the longest bar
_LISTED = 20  # corrupt records in the lines: a screenful


def facts(corpus: Corpus) -> dict[str, Any]:
    """Returns the facts about a corpus as JSON values."""
    sizes = corpus.file_bytes
    return {
        "corpus": corpus.location,
        "documents": len(corpus),
        "tokens": corpus.tokens,
        "text_bytes": corpus.text_bytes,
        "disk_bytes": sum(sizes.values()),
        "shards": sum(name.endswith(".array_record") for name in sizes),
        "fingerprint": corpus.fingerprint,
        "manifest": corpus.manifest,
        "fields": list(corpus.fields),
        "dropped": corpus.dropped,
        "corrupt": [{"where": bad.where, "error": bad.error} for bad in corpus.corrupt],
    }


def lengths(corpus: Corpus) -> dict[str, Any]:
    """Returns quantiles and a histogram of the documents' lengths in ids, by powers of two."""
    values = corpus.lengths
    classes = np.bincount(np.frexp(values)[1])  # 2^(e - 1) <= n < 2^e; 0 for none
    return {
        "quantiles": {
            f"{q:g}": int(np.quantile(values, q, method="inverted_cdf")) for q in _QUANTILES
        },
        "histogram": [
            {"from": 1 << e >> 1, "below": 1 << e, "documents": n}
            for e, n in enumerate(classes.tolist())
            if n
        ],
    }


def packing(rows: Rows, *, method: str) -> dict[str, Any]:
    """Returns the facts about packed rows."""
    return {"method": method, "length": rows.length, "rows": len(rows), "fill": rows.fill}


def described(facts: Mapping[str, Any]) -> str:
    """Returns the facts as lines, with lengths and packing if they are there."""
    return "\n".join(_lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    tokens = f", {facts['tokens']:,} tokens" if facts["tokens"] else ""
    yield f"{_safe(facts['corpus'])}: {facts['documents']:,} documents{tokens}"
    if "split" in facts:
        yield f"  split: {_safe(facts['split'])}"
    for name, value in facts["manifest"].items():
        yield f"  {_safe(name)}: {_safe(value)}"
    yield f"  fields: {', '.join(map(_safe, facts['fields']))}"
    yield f"  fingerprint: {facts['fingerprint']}"
    yield f"  on disk: {facts['disk_bytes']:,} bytes, shards: {facts['shards']:,}"
    if facts["text_bytes"] and facts["tokens"]:
        yield f"  text: {facts['text_bytes']:,} bytes, {_ratio(facts)} a token"
    yield f"  dropped: {facts['dropped']:,} (records of which nothing is learnt)"
    yield f"  corrupt: {len(facts['corrupt']):,} (records left out)"
    for bad in facts["corrupt"][:_LISTED]:
        yield f"    {_safe(bad['where'])}: {_safe(bad['error'])}"
    if len(facts["corrupt"]) > _LISTED:
        yield f"    and {len(facts['corrupt']) - _LISTED:,} more: --json lists all"
    if "lengths" in facts:
        yield from _length_lines(**facts["lengths"])
    if "packing" in facts:
        of = facts["packing"]
        rows = f"{of['rows']:,} rows, fill {of['fill']:.4f}"
        yield f"{of['method']} at length {of['length']:,}: {rows}"


def _length_lines(quantiles: Mapping[str, int], histogram: list[dict[str, int]]) -> Iterator[str]:
    yield "ids of a document"
    shown = [f"{float(q):.0%} {length:,}" for q, length in quantiles.items()]
    yield f"  quantiles: {', '.join(shown)}"
    rows = [(f"{c['from']:,} to {c['below'] - 1:,}", c["documents"]) for c in histogram]
    name, count = (max(len(str(row[i])) for row in rows) for i in (0, 1))
    most = max(documents for _, documents in rows)
    for label, documents in rows:
        bar = "#" * max(1, round(_BAR * documents / most))
        yield f"  {label:>{name}}  {documents:>{count}}  {bar}"


def _ratio(facts: Mapping[str, Any]) -> str:
    return f"{facts['text_bytes'] / facts['tokens']:.2f}"


def _safe(value: Any) -> str:
    return visible(str(value), lines=False)
