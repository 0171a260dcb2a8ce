# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of records to a training corpus and a held-out corpus.

No record is cut: one that is longer than a row is refused by name.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail_data import Corpus, Encoder, Progress, Source, jsonl, parquet, write
from dovetail_data.sources import compression

_READERS = {".jsonl": jsonl, ".ndjson": jsonl, ".json": jsonl, ".parquet": parquet}
_TEXTS = (".txt", ".md", ".csv", ".tsv")
_LISTED = 20  # corrupt records in a message: a screenful


class RecordsError(ValueError):
    """Records that a run cannot learn from as they are."""

    exit_code = 3  # of the command: refused data


def opened(files: Sequence[str | Path], *, json_columns: Sequence[str] = ()) -> Source:
    """Returns the records of files of one kind, JSON lines (also compressed) or Parquet.

    Raises ValueError for absent files, for other kinds and for several, and for `json_columns` of
    JSON lines. Raises RecordsError for a file of text.
    """
    names = [str(file) for file in files]
    for name in names:
        if _ending(name) in _TEXTS and Path(name).is_file():
            first = Path(name).read_text("utf-8", "replace").partition("\n")[0]
            raise RecordsError(
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpora:
    """Encoded records.

    Attributes:
        train: Records to train on.
        held_out: Records to measure on.
    """

    train: Corpus
    held_out: Corpus

    def __str__(self) -> str:
        """One line of counts, and one for each record that was left out as damaged."""
        sides = (self.train, self.held_out)
        dropped = sum(corpus.dropped for corpus in sides)
        corrupt = [record for corpus in sides for record in corpus.corrupt]
        line = f"{len(self.train)} records to train on, {len(self.held_out)} held out"
        if dropped:
            line += f", {dropped} left out without anything to train on"
        if corrupt:
            line += f", {len(corrupt)} left out as damaged:"
        listed = [f"\n  {record.where}: {record.error}" for record in corrupt[:_LISTED]]
        more = len(corrupt) - _LISTED
        return line + "".join(listed) + (f"\n  and {more} more" if more > 0 else "")


def encode(
    sides: tuple[Source, Source],
    directory: Path,
    *,
    encoder: Encoder,
    max_corrupt: int = 0,
    workers: int = 1,
    progress: Callable[[str, Progress], None] | None = None,
) -> Corpora:
    """Writes both corpora below `directory`, or opens them. An interrupted write continues.

    Args:
        sides: From `dovetail_data.hold_out`.
        directory: Receives both corpora.
        encoder: Of `dovetail_data`: `Chat` or `Preference`.
        max_corrupt: Damaged records of both sides that may be left out.
        workers: Processes that encode.
        progress: Receives "train" or "held_out", and the writer's event.

    Raises:
        ValueError: More records are damaged, or one side has no record to train on. Such an error
            of the first side comes before the second is read.
    """
    corpora = {}
    for name, side in zip(("train", "held_out"), sides, strict=True):
        report = progress and functools.partial(progress, name)
        options = {"workers": workers, "max_corrupt": max_corrupt, "progress": report}
        corpora[name] = write(side, directory / name, encoder=encoder, **options)
    encoded = Corpora(**corpora)
    if (count := sum(len(corpus.corrupt) for corpus in corpora.values())) > max_corrupt:
        raise RecordsError(
            f"at most max_corrupt={max_corrupt} records may be damaged, got {count}: mend them, or "
            f"pass max_corrupt={count}\n{encoded}"
        )
    return encoded


def opened_corpora(directory: Path) -> Corpora:
    """Opens what `encode` wrote below `directory`."""
    return Corpora(train=Corpus(directory / "train"), held_out=Corpus(directory / "held_out"))


def check_fit(
    corpora: Corpora,
    sides: tuple[Source, Source],
    *,
    length: int,
    positions: int,
    targets: bool = True,
) -> None:
    """Raises RecordsError if a record is longer than a row, and names the longest.

    Args:
        corpora: The encoded records.
        sides: Their sources.
        length: Slots of a row.
        positions: Positions that the model was made for.
        targets: A record of n ids takes n - 1 slots, since each holds a token and its target.
    """
    spare = 1 if targets else 0
    pairs = list(zip((corpora.train, corpora.held_out), sides, strict=True))
    longer = sum(int((corpus.lengths - spare > length).sum()) for corpus, _ in pairs)
    if not longer:
        return
    corpus, side = max(pairs, key=lambda pair: int(pair[0].lengths.max()))
    document = int(corpus.lengths.argmax())
    needed = int(corpus.lengths[document]) - spare
    name, record = corpus.source(document)
    (input_part,) = (x for x in side.parts() if x.name == name)
    remedy = (
        f"pass length={needed}"
        if needed <= positions
        else f"leave out those above the {positions} positions that the model was made for"
    )
    raise RecordsError(
        f"every record must fit a row whole, got length={length} and {longer} longer records, "
        f"the longest {side.locate(input_part, record)} of {needed} tokens: {remedy}"
    )
