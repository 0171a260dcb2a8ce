# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""index.json: what a finished corpus is. Its presence says that the corpus is finished."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_data.ledger import sync_directory

NAME = "index.json"
PARTS = "parts.json"
FORMAT = "dovetail-corpus/1"
TOTALS = ("documents", "tokens", "text_bytes", "dropped")


def read_index(directory: Path) -> dict[str, Any]:
    """The index of a finished corpus; ValueError for anything else."""
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
    """Finishes a corpus. facts: codec, vocabulary and fingerprints, recorded as they are.

    The corpus's own fingerprint is the sha256 of what its readers see: documents and vocabulary.
    """
    totals = {name: sum(shard[name] for shard in shards) for name in TOTALS}
    if totals["documents"] == 0:
        raise ValueError(
            f"a corpus must have a document: got documents=0, dropped={totals['dropped']}. "
            "Give a source with text, and another directory."
        )
    contents = [shard[kind]["sha256"] for shard in shards for kind in ("records", "table")]
    seen = json.dumps([FORMAT, facts["codec"], facts["tokenizer"], contents])
    index = {
        "format": FORMAT,
        "fingerprint": hashlib.sha256(seen.encode()).hexdigest(),
        **totals,
        **facts,
        "shards": list(shards),
    }
    _write(directory / PARTS, list(parts))
    _write(directory / NAME, index)


def _write(path: Path, value: Any) -> None:
    partial = path.with_name(f"partial-{path.name}")
    with open(partial, "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    sync_directory(path.parent)
