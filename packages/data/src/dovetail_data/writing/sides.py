# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The corpora of a split: records to train on, and held-out records, in one directory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from dovetail_data.corpus.corpus import Corpus
from dovetail_data.encode.encoder import Encoder
from dovetail_data.sources.source import Source
from dovetail_data.writing.write import CorruptInputError, Progress, write

_NAMES = ("train", "held_out")
_LISTED = 20  # corrupt records in a text: a screenful


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpora:
    """Two corpora. `str` counts their records and lists those left out as damaged.

    Attributes:
        train: Records to train on.
        held_out: Records to measure on.
    """

    train: Corpus
    held_out: Corpus

    @classmethod
    def open(cls, directory: str | Path) -> Corpora:
        """Opens what `write_sides` wrote below `directory`."""
        return cls(**{name: Corpus(Path(directory) / name) for name in _NAMES})

    def longest(self, sides: tuple[Source, Source]) -> tuple[int, str]:
        """Returns the number of ids of the longest record, and its place, "a/b.jsonl:17".

        Args:
            sides: The sources that the corpora were written from.
        """
        pairs = zip((self.train, self.held_out), sides, strict=True)
        corpus, side = max(pairs, key=lambda pair: int(pair[0].lengths.max()))
        document = int(corpus.lengths.argmax())
        name, record = corpus.source(document)
        (input_part,) = (x for x in side.parts() if x.name == name)
        return int(corpus.lengths[document]), side.locate(input_part, record)

    def __str__(self) -> str:
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


def write_sides(
    sides: tuple[Source, Source],
    directory: str | Path,
    *,
    encoder: Encoder,
    max_corrupt: int = 0,
    workers: int = 1,
    progress: Callable[[str, Progress], object] | None = None,
) -> Corpora:
    """Encodes both sides of a split below `directory`, or opens them. A killed call resumes.

    Args:
        sides: Sources to train on and to hold out, such as those of `hold_out`.
        directory: Gets a directory `train` and a directory `held_out`.
        encoder: As for `write`.
        max_corrupt: Records of both sides together that may be damaged.
        workers: As for `write`.
        progress: Called with "train" or "held_out", and the `Progress` of that corpus.

    Raises:
        ValueError: As `write`. An error of the first side comes before the second is read.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, hold_out, jsonl
        >>> lines = "".join('{"text": "%d"}\\n' % n for n in range(9))
        >>> _ = Path("n.jsonl").write_text(lines)
        >>> sides = hold_out(jsonl("n.jsonl"), share=0.2)
        >>> print(write_sides(sides, "both", encoder=Text(Bytes())))
        7 records to train on, 2 held out
    """
    corpora = {}
    for name, side in zip(_NAMES, sides, strict=True):
        corpora[name] = write(
            side,
            Path(directory) / name,
            encoder=encoder,
            max_corrupt=max_corrupt,
            workers=workers,
            progress=progress and functools.partial(progress, name),
        )
    written = Corpora(**corpora)
    if (count := sum(len(corpus.corrupt) for corpus in corpora.values())) > max_corrupt:
        raise CorruptInputError(
            f"at most max_corrupt={max_corrupt} records may be damaged, got {count}: mend them, or "
            f"pass max_corrupt={count}\n{written}"
        )
    return written
