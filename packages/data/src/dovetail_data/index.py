# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The file index.json of a corpus. Its presence marks the corpus as finished."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_data._durable import write_file

NAME = "index.json"
PARTS = "parts.json"
FORMAT = "dovetail-corpus/2"
TOTALS = ("documents", "tokens", "text_bytes", "dropped")


def read_index(directory: Path) -> dict[str, Any]:
    """Returns the index of a finished corpus, or raises ValueError."""
    if not (directory / NAME).is_file():
        raise ValueError(
            f"a corpus must be finished: got directory={directory} without {NAME}. "
            "Call write(...) with this directory; it goes on where it stopped."
        )
    index = json.loads((directory / NAME).read_text(encoding="utf-8"))
    if index.get("format") != FORMAT:
        raise ValueError(
            f"a corpus must have the format {FORMAT!r}: got format={index.get('format')!r} in "
            f"{directory}. Write it again with this version."
        )
    return index


def write_index(
    directory: Path,
    *,
    shards: Sequence[dict[str, Any]],
    parts: Sequence[str],
    facts: dict[str, Any],
) -> None:
    """Finishes a corpus by writing its index.

    The fingerprint of the corpus is the sha256 of everything its readers see: layout, manifest and
    documents.

    Args:
        directory: The corpus.
        shards: The ledger's entry of each shard.
        parts: Names of the input parts.
        facts: Layout, manifest and fingerprints, recorded as they are.
    """
    totals = {name: sum(shard[name] for shard in shards) for name in TOTALS}
    corrupt = sum(len(shard["corrupt"]) for shard in shards)
    if totals["documents"] == 0:
        raise ValueError(
            f"a corpus must have a document: got documents=0, dropped={totals['dropped']}, "
            f"corrupt={corrupt}. Give a source that holds some, and another directory."
        )
    contents = [shard[kind]["sha256"] for shard in shards for kind in ("records", "table")]
    seen = json.dumps([FORMAT, facts["layout"], facts["manifest"], contents])
    index = {
        "format": FORMAT,
        "fingerprint": hashlib.sha256(seen.encode()).hexdigest(),
        **totals,
        "corrupt": corrupt,
        **facts,
        "shards": list(shards),
    }
    write_json(directory / PARTS, list(parts))
    write_json(directory / NAME, index)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, durably."""
    write_file(path, json.dumps(value, indent=1).encode() + b"\n")
