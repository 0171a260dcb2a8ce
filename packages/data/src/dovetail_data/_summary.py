# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a corpus is, in facts and in lines."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail_data._visible import visible
from dovetail_data.corpus import Corpus
from dovetail_data.rows import Rows

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_BAR = 40  # characters of the longest bar
_LISTED = 20  # corrupt records that are told: a screenful


def facts(corpus: Corpus) -> dict[str, Any]:
    """What `write` made: JSON values."""
    files = [file for file in corpus.directory.iterdir() if file.is_file()]
    return {
        "corpus": str(corpus.directory),
        "documents": len(corpus),
        "tokens": corpus.tokens,
        "text_bytes": corpus.text_bytes,
        "disk_bytes": sum(file.stat().st_size for file in files),
        "shards": sum(file.suffix == ".array_record" for file in files),
        "fingerprint": corpus.fingerprint,
        "manifest": corpus.manifest,
        "fields": list(corpus.fields),
        "dropped": corpus.dropped,
        "corrupt": [{"where": one.where, "error": one.error} for one in corpus.corrupt],
    }


def lengths(corpus: Corpus) -> dict[str, Any]:
    """Of the documents, in ids: quantiles, and how many lie in [a power of two, the next one)."""
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
    return {"method": method, "length": rows.length, "rows": len(rows), "fill": rows.fill}


def told(found: Mapping[str, Any]) -> str:
    """The facts, and what else is there of lengths and packing, for a person."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    tokens = f", {found['tokens']:,} tokens" if found["tokens"] else ""
    yield f"{_safe(found['corpus'])}: {found['documents']:,} documents{tokens}"
    if "split" in found:
        yield f"  split: {_safe(found['split'])}"
    for name, value in found["manifest"].items():
        yield f"  {_safe(name)}: {_safe(value)}"
    yield f"  fields: {', '.join(map(_safe, found['fields']))}"
    yield f"  fingerprint: {found['fingerprint']}"
    yield f"  on disk: {found['disk_bytes']:,} bytes, shards: {found['shards']:,}"
    if found["text_bytes"] and found["tokens"]:
        yield f"  text: {found['text_bytes']:,} bytes, {_ratio(found)} a token"
    yield f"  dropped: {found['dropped']:,} (records of which nothing is learnt)"
    yield f"  corrupt: {len(found['corrupt']):,} (records left out)"
    for one in found["corrupt"][:_LISTED]:
        yield f"    {_safe(one['where'])}: {_safe(one['error'])}"
    if len(found["corrupt"]) > _LISTED:
        yield f"    and {len(found['corrupt']) - _LISTED:,} more: --json lists all"
    if "lengths" in found:
        yield from _length_lines(**found["lengths"])
    if "packing" in found:
        of = found["packing"]
        rows = f"{of['rows']:,} rows, fill {of['fill']:.4f}"
        yield f"{of['method']} at length {of['length']:,}: {rows}"


def _length_lines(quantiles: Mapping[str, int], histogram: list[dict[str, int]]) -> Iterator[str]:
    yield "ids of a document"
    shown = [f"{float(q):.0%} {length:,}" for q, length in quantiles.items()]
    yield f"  quantiles: {', '.join(shown)}"
    rows = [(f"{one['from']:,} to {one['below'] - 1:,}", one["documents"]) for one in histogram]
    name, count = (max(len(str(row[i])) for row in rows) for i in (0, 1))
    most = max(documents for _, documents in rows)
    for label, documents in rows:
        bar = "#" * max(1, round(_BAR * documents / most))
        yield f"  {label:>{name}}  {documents:>{count}}  {bar}"


def _ratio(found: Mapping[str, Any]) -> str:
    return f"{found['text_bytes'] / found['tokens']:.2f}"


def _safe(value: Any) -> str:
    return visible(str(value), lines=False)
