# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files become a tokenizer, a corpus to train on and a corpus to be judged by.

The split is by file and depends on each file's path alone, so adding a file moves no other, and
the tokenizer is trained on the training files only.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail_data import Corpus, Pretrained, Progress, Text, records, text, train_bpe, write

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A tokenizer and the two corpora that it wrote."""

    tokenizer: Pretrained
    train: Corpus
    held_out: Corpus


def find(directory: Path, *, pattern: str, skip: Sequence[str] = ()) -> list[Path]:
    """The files below `directory` that match `pattern`, sorted.

    Left out: hidden files and folders (.git, .DS_Store), and folders whose name is in `skip`.

    Raises:
      ValueError: `directory` is not a directory, or nothing matches.
    """
    if not directory.is_dir():
        raise ValueError(f"the text must be a directory, got {str(directory)!r}: pass --text DIR")

    def wanted(path: Path) -> bool:
        parts = path.relative_to(directory).parts
        return not any(part.startswith(".") or part in skip for part in parts)

    files = sorted(path for path in directory.glob(pattern) if path.is_file() and wanted(path))
    if not files:
        raise ValueError(
            f"no file below {str(directory)!r} matches pattern={pattern!r}: pass --text DIR with "
            "text in it, or --pattern, for example '**/*.md'"
        )
    return files


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
