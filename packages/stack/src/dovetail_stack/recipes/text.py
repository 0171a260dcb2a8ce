# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files to a tokenizer, a training corpus and a held-out corpus.

The split is by file and depends only on the file's path, so a new file moves no other. The
tokenizer is trained on the training files only.
"""

import codecs
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail_data import (
    Corpus,
    Pretrained,
    Progress,
    Text,
    records,
    text,
    train_bpe,
    within,
    write,
)
from dovetail_data.sources import compression
from dovetail_data.splitting.hashes import fraction_of
from dovetail_stack.recipes.options import check_local

TOKENIZER = "tokenizer.json"
BINARY_BYTES = 8000  # at the beginning of a file, in which git looks for a NUL
BLOCK_BYTES = 1 << 20  # read at once


class NoTextError(ValueError):
    """No file of UTF-8 text below a directory matches."""

    exit_code = 3  # of the command: refused data


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A tokenizer and two corpora.

    Attributes:
        tokenizer: The tokenizer.
        train: Corpus to train on.
        held_out: Corpus to measure on.
    """

    tokenizer: Pretrained
    train: Corpus
    held_out: Corpus


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Text files below a directory.

    Attributes:
        files: Sorted paths.
        skipped: Names, relative to the directory, of files without UTF-8 text.
        counts: Number of skipped files by reason.
    """

    files: list[Path]
    skipped: tuple[str, ...]
    counts: dict[str, int]

    def __repr__(self) -> str:
        return f"Selection({self})"

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.items())
        skipped = f"{sum(self.counts.values())} skipped" + (f" ({reasons})" if reasons else "")
        return f"{len(self.files)} files of text, {skipped}"


def check_directory(directory: Path) -> None:
    """Raises ValueError unless the text is a directory of this machine."""
    check_local("text", directory)
    if not directory.is_dir():
        came = "a file" if directory.exists() else "which does not exist"
        raise ValueError(
            f"the text must be a directory, got {str(directory)!r}, {came}: pass --text DIR"
        )


def find(directory: Path, *, pattern: str, skip: Sequence[str] = ()) -> list[Path]:
    """Returns the files of `select`.

    Args:
        directory: Root of the files.
        pattern: Glob below it.
        skip: Names of folders to leave out.
    """
    return select(directory, pattern=pattern, skip=skip).files


def select(
    directory: Path,
    *,
    pattern: str,
    skip: Sequence[str] = (),
    skipped: Sequence[str] | None = None,
) -> Selection:
    """Selects the text files below `directory` that match `pattern`.

    Skips hidden files and folders (.git, .DS_Store), `__pycache__`, files with a NUL byte near
    their beginning (git's test for binary files), and files that are not UTF-8.

    Args:
        directory: Root of the files.
        pattern: Glob below it.
        skip: Names of folders to leave out.
        skipped: Names of files without text from an earlier call. None: read every file.

    Returns:
        The sorted files, and the skipped ones.

    Raises:
        ValueError: `directory` is not a directory.
        NoTextError: No text matches.
    """
    check_directory(directory)
    counts: Counter[str] = Counter()
    paths: list[Path] = []
    for path in sorted(path for path in directory.glob(pattern) if path.is_file()):
        parts = path.relative_to(directory).parts
        if any(name_part in skip for name_part in parts):
            continue
        if any(name_part.startswith(".") for name_part in parts):
            counts["hidden"] += 1
        elif "__pycache__" in parts:
            counts["in __pycache__"] += 1
        else:
            paths.append(path)
    files, foreign = [], []
    for path in paths:
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
    """Returns the reason to skip a file; empty for text."""
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
    """Splits files into (train, held out) by a hash of their paths below `root`.

    Args:
        files: At least two.
        root: Directory above the files.
        held_out: Share of the files to hold out, in (0, 1); at least one file goes to each side.

    Raises:
        ValueError: There are fewer than two files, or the share is outside (0, 1).
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must lie between 0 and 1, got held_out={held_out}: try 0.05")
    if len(files) < 2:
        raise ValueError(
            f"a split into train and held-out needs at least 2 files, got {len(files)}: add files, "
            "or cut the text into several"
        )
    share = {path: fraction_of(path.relative_to(root).as_posix().encode()) for path in files}
    held = {path for path in files if share[path] < held_out}
    if not held:
        held = {min(files, key=share.__getitem__)}
    elif len(held) == len(files):
        held.remove(max(files, key=share.__getitem__))
    return sorted(set(files) - held), sorted(held)


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

    Existing corpora are opened. An interrupted write continues.

    Args:
        train: Files to train on.
        held_out: Files to measure on.
        directory: Receives the tokenizer and both corpora.
        vocab_size: Ids of the tokenizer, two special ones included.
        workers: Processes that tokenize.
        progress: Receives "train" or "held_out", and the writer's event.
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


def opened(directory: Path, *, tokenizer: Pretrained | None = None) -> Prepared:
    """Opens what `prepare` wrote below `directory`, or `encode` with a tokenizer from elsewhere."""
    return Prepared(
        tokenizer=tokenizer or Pretrained(directory / TOKENIZER),
        train=Corpus(directory / "train"),
        held_out=Corpus(directory / "held_out"),
    )


def encode(
    train: Sequence[Path],
    held_out: Sequence[Path],
    directory: Path,
    *,
    tokenizer: Pretrained,
    vocab_size: int | None = None,
    workers: int = 1,
    progress: Callable[[str, Progress], None] | None = None,
) -> Prepared:
    """Writes both corpora below `directory` with a tokenizer.

    Args:
        train: Files to train on.
        held_out: Files to measure on.
        directory: Receives both corpora.
        tokenizer: The tokenizer.
        vocab_size: Rows of the model's embedding; a text with another id is refused. None: as many
            as the tokenizer has ids.
        workers: Processes that tokenize.
        progress: Receives "train" or "held_out", and the writer's event.
    """
    encoder = within(Text(tokenizer), vocab_size=vocab_size)
    corpora = {}
    for name, files in {"train": train, "held_out": held_out}.items():
        report = progress and functools.partial(progress, name)
        options = {"encoder": encoder, "workers": workers, "progress": report}
        corpora[name] = write(text(files), directory / name, **options)
    return Prepared(tokenizer=tokenizer, **corpora)
