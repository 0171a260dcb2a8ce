# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files become a tokenizer, a corpus to train on and a corpus to be judged by.

The split is by file and depends on each file's path alone, so adding a file moves no other, and
the tokenizer is trained on the training files only.
"""

import codecs
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail_data import (
    Corpus,
    Pretrained,
    Progress,
    Text,
    compression,
    records,
    text,
    train_bpe,
    write,
)

TOKENIZER = "tokenizer.json"
BINARY_BYTES = 8000  # at the beginning of a file, in which git looks for a NUL
BLOCK_BYTES = 1 << 20  # read at once


class NoTextError(ValueError):
    """A directory holds no file of UTF-8 text that matches."""

    exit_code = 3  # of the command: refused data


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A tokenizer and the two corpora that it wrote."""

    tokenizer: Pretrained
    train: Corpus
    held_out: Corpus


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Text files below a directory, and the names of files that are none.

    Attributes:
        files: Sorted paths.
        skipped: Names, relative to the directory, of files that hold no UTF-8 text.
        counts: Number of files by the reason for which they were skipped.
    """

    files: list[Path]
    skipped: tuple[str, ...]
    counts: dict[str, int]

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.items())
        skipped = f"{sum(self.counts.values())} skipped" + (f" ({reasons})" if reasons else "")
        return f"{len(self.files)} files of text, {skipped}"


def find(directory: Path, *, pattern: str, skip: Sequence[str] = ()) -> list[Path]:
    """The files of `select`."""
    return select(directory, pattern=pattern, skip=skip).files


def select(
    directory: Path,
    *,
    pattern: str,
    skip: Sequence[str] = (),
    skipped: Sequence[str] | None = None,
) -> Selection:
    """The text files below `directory` that match `pattern`.

    Skipped are hidden files and folders (.git, .DS_Store), `__pycache__`, files with a NUL byte in
    their beginning, as git tells binary files, and files that are not UTF-8.

    Args:
        directory: The root.
        pattern: A glob below it.
        skip: Names of folders to leave out.
        skipped: Names of files without text that an earlier call found. None: read every file.

    Returns:
        The files, in the order of their names, and what was skipped.

    Raises:
        ValueError: `directory` is not a directory, or no text matches.
    """
    if not directory.is_dir():
        raise ValueError(f"the text must be a directory, got {str(directory)!r}: pass --text DIR")
    counts: Counter[str] = Counter()
    found: list[Path] = []
    for path in sorted(path for path in directory.glob(pattern) if path.is_file()):
        parts = path.relative_to(directory).parts
        if any(part in skip for part in parts):
            continue
        if any(part.startswith(".") for part in parts):
            counts["hidden"] += 1
        elif "__pycache__" in parts:
            counts["in __pycache__"] += 1
        else:
            found.append(path)
    files, foreign = [], []
    for path in found:
        name = path.relative_to(directory).as_posix()
        reason = _foreign(path) if skipped is None else "without text" * (name in skipped)
        if reason:
            counts[reason] += 1
            foreign.append(name)
        else:
            files.append(path)
    result = Selection(files=files, skipped=tuple(foreign), counts=dict(counts))
    if not files:
        raise NoTextError(
            f"no file of text below {str(directory)!r} matches pattern={pattern!r}, got {result}: "
            "pass --text DIR with text in it, or --pattern, for example '**/*.md'"
        )
    return result


def _foreign(path: Path) -> str:
    """The reason why a file holds no text; empty if it does."""
    if compression.disguise(str(path)):
        return "binary"
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with compression.open_file(str(path)) as stream:
            block = stream.read(BLOCK_BYTES)
            if b"\0" in block[:BINARY_BYTES]:
                return "binary"
            while block:
                decoder.decode(block)
                block = stream.read(BLOCK_BYTES)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "not UTF-8"
    except compression.Damaged:
        return "damaged"
    return ""


def split(files: Sequence[Path], *, root: Path, held_out: float) -> tuple[list[Path], list[Path]]:
    """Splits files into (train, held out) by a hash of their path below `root`.

    Args:
      files: at least two.
      held_out: share of the files to hold out, in (0, 1); at least one file goes to each side.

    Raises:
      ValueError: fewer than two files, or a share outside (0, 1).
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must lie between 0 and 1, got {held_out}: try 0.05")
    if len(files) < 2:
        raise ValueError(
            f"a split into train and held-out needs at least 2 files, got {len(files)}: add files, "
            "or cut the text into several"
        )
    share = {path: _share(path.relative_to(root).as_posix()) for path in files}
    chosen = {path for path in files if share[path] < held_out}
    if not chosen:
        chosen = {min(files, key=share.__getitem__)}
    elif len(chosen) == len(files):
        chosen.remove(max(files, key=share.__getitem__))
    return sorted(set(files) - chosen), sorted(chosen)


def _share(name: str) -> float:
    """A number in [0, 1) that depends on `name` alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def prepare(
    train: Sequence[Path],
    held_out: Sequence[Path],
    directory: Path,
    *,
    vocab_size: int,
    workers: int = 1,
    progress: Callable[[str, Progress], None] | None = None,
) -> Prepared:
    """Trains a byte-level BPE on `train` and writes both corpora below `directory`.

    What is already there is opened, not made again; a writer that was killed goes on where it was.

    Args:
      vocab_size: ids of the tokenizer, its two special ones included.
      workers: processes that tokenize.
      progress: called with "train" or "held_out" and the writer's event.
    """
    path = directory / TOKENIZER
    if path.exists():
        tokenizer = Pretrained(path)
    else:
        directory.mkdir(parents=True, exist_ok=True)
        source = text(train)
        texts = (record["text"] for record in records(source))
        tokenizer = train_bpe(texts, path, vocab_size=vocab_size)
    return encode(
        train, held_out, directory, tokenizer=tokenizer, workers=workers, progress=progress
    )


def encode(
    train: Sequence[Path],
    held_out: Sequence[Path],
    directory: Path,
    *,
    tokenizer: Pretrained,
    workers: int = 1,
    progress: Callable[[str, Progress], None] | None = None,
) -> Prepared:
    """Writes both corpora below `directory` with that tokenizer; options as in `prepare`."""

    def written(files: Sequence[Path], name: str) -> Corpus:
        def report(event: Progress) -> None:
            if progress is not None:
                progress(name, event)

        return write(
            text(files),
            directory / name,
            encoder=Text(tokenizer),
            workers=workers,
            progress=report,
        )

    return Prepared(
        tokenizer=tokenizer,
        train=written(train, "train"),
        held_out=written(held_out, "held_out"),
    )
