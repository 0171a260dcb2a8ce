# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continuation of a write after its damaged input files were mended.

A write that meets too many damaged records notes their files in the ledger, and one digest of all
others. If the source then differs in the noted files alone, the shards before the first changed
file are those of the mended source too, and stay.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from dovetail_data.sources._files import Listed
from dovetail_data.sources.source import Part, Source
from dovetail_data.writing.workers import Chunk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mended:
    """A mended source, compared with the one of the ledger.

    Args:
        files: Names of the files that changed.
        kept: Number of finished shards that stay.
    """

    files: tuple[str, ...]
    kept: int


def note(source: Source, parts: Sequence[Part], damaged: Collection[int]) -> dict[str, Any] | None:
    """Returns the entry of the ledger about the files with damaged records.

    Args:
        source: The source.
        parts: Its parts.
        damaged: Numbers of the parts with damaged records.

    Returns:
        The digest and the first part of each file, and the digest of all others. None for a source
        without a list of files.
    """
    if not isinstance(source, Listed):
        return None
    paths = {parts[i].path for i in damaged}
    first: dict[str, int] = {}
    for i, input_part in enumerate(parts):
        if input_part.path in paths:
            first.setdefault(input_part.path, i)
    files = {
        source.by_path[path].name: {"sha256": source.contents[path].sha256, "first": i}
        for path, i in first.items()
    }
    return {"files": files, "others": source.digest(without=files)}


def mended(
    source: Source,
    chunks: Sequence[Chunk],
    noted: dict[str, Any] | None,
    lines: Sequence[dict[str, Any]],
) -> Mended | None:
    """Returns what changed since `noted`, or None if anything else did.

    Args:
        source: The source as it is now.
        chunks: Its chunks.
        noted: The ledger's entry of the damaged files.
        lines: The ledger's entries of the finished shards.
    """
    if noted is None or not isinstance(source, Listed):
        return None
    files = noted["files"]
    if source.digest(without=files) != noted["others"]:
        return None
    now = {file.name: source.contents[file.path].sha256 for file in source.files}
    changed = [name for name, entry in files.items() if now.get(name) != entry["sha256"]]
    first = min((files[name]["first"] for name in changed), default=0)
    # A chunk that ends right before a changed file might have taken in some of it.
    whole = sum(chunk[-1][0] + 1 < first for chunk in chunks)
    kept = sum(line["chunks"] + bool(line["slices"]) <= whole for line in lines)
    return Mended(files=tuple(sorted(changed)), kept=kept)
