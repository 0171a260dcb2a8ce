# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of records for a run: JSON lines or Parquet, each record short enough for a row.

No record is cut: one that is longer than a row is refused by name.
"""

from collections.abc import Sequence
from pathlib import Path

from dovetail_data import Corpora, Source, jsonl, parquet
from dovetail_data.sources import compression
from dovetail_stack.recipes.options import RefusedError

_READERS = {".jsonl": jsonl, ".ndjson": jsonl, ".json": jsonl, ".parquet": parquet}
_TEXTS = (".txt", ".md", ".csv", ".tsv")


def opened(files: Sequence[str | Path], *, json_columns: Sequence[str] = ()) -> Source:
    """Returns the records of files of one kind, JSON lines (also compressed) or Parquet.

    Raises ValueError for absent files, for other kinds and for several, and for `json_columns` of
    JSON lines. Raises RefusedError for a file of text.
    """
    names = [str(file) for file in files]
    for name in names:
        if _ending(name) in _TEXTS and Path(name).is_file():
            first = Path(name).read_text("utf-8", "replace").partition("\n")[0]
            raise RefusedError(
                f'records must be lines of JSON, such as {{"messages": [...]}}, or Parquet, got '
                f"{name} with line 1 {first[:60]!r}: write a file .jsonl, or train on text by "
                "dovetail train continue --text DIR"
            )
    readers = {_READERS.get(_ending(name)) for name in names}
    reader = readers.pop() if len(readers) == 1 else None
    if reader is None:
        raise ValueError(
            f"records must be files of one kind, {', '.join(_READERS)}, got "
            f"{', '.join(names) or 'none'}: pass records= files of one kind"
        )
    if absent := [name for name in names if not Path(name).exists()]:
        raise ValueError(
            f"records must be files, got records={absent[0]}, which does not exist: correct the "
            "path"
        )
    if not json_columns:
        return reader(names)
    if reader is not parquet:
        raise ValueError(
            f"json_columns must be of Parquet files, got {names[0]} with "
            f"json_columns={tuple(json_columns)}: leave json_columns= out"
        )
    return parquet(names, json_columns=json_columns)


def _ending(file: str) -> str:
    name = Path(file).name
    return Path(name.removesuffix(compression.suffix(name))).suffix


def check_fit(
    corpora: Corpora,
    sides: tuple[Source, Source],
    *,
    length: int,
    positions: int,
    targets: bool = True,
) -> None:
    """Raises RefusedError if a record is longer than a row, and names the longest.

    Args:
        corpora: The encoded records, from `dovetail_data.write_sides`.
        sides: Their sources.
        length: Slots of a row.
        positions: Positions that the model was made for.
        targets: A record of n ids takes n - 1 slots, since each holds a token and its target.
    """
    spare = 1 if targets else 0
    both = (corpora.train, corpora.held_out)
    longer = sum(int((corpus.lengths - spare > length).sum()) for corpus in both)
    if not longer:
        return
    ids, place = corpora.longest(sides)
    needed = ids - spare
    remedy = (
        f"pass length={needed}"
        if needed <= positions
        else f"leave out those above the {positions} positions that the model was made for"
    )
    raise RefusedError(
        f"every record must fit a row whole, got length={length} and {longer} longer records, "
        f"the longest {place} of {needed} tokens: {remedy}"
    )
