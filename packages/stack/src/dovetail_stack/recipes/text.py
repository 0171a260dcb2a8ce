# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files to a tokenizer, a training corpus and a held-out corpus.

The tokenizer is trained on the training files only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail_data import (
    Corpora,
    Pretrained,
    Progress,
    Text,
    TextSelection,
    records,
    select_text,
    text,
    train_bpe,
    within,
    write_sides,
)
from dovetail_stack.recipes.options import RefusedError, check_local

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Prepared(Corpora):
    """Two corpora with their tokenizer."""

    tokenizer: Pretrained


def check_directory(directory: Path) -> None:
    """Raises ValueError unless the text is a directory of this machine."""
    check_local("text", directory)
    if not directory.is_dir():
        came = "a file" if directory.exists() else "which does not exist"
        raise ValueError(
            f"the text must be a directory, got {str(directory)!r}, {came}: pass --text DIR"
        )


def select(
    directory: Path,
    *,
    pattern: str,
    skip: Sequence[str] = (),
    skipped: Sequence[str] | None = None,
) -> TextSelection:
    """Selects the text files of `dovetail_data.select_text`.

    Args:
        directory: Root of the files.
        pattern: Glob below it.
        skip: Names of folders to leave out.
        skipped: Names of files without text from an earlier call. None: read every file.

    Raises:
        ValueError: `directory` is not a directory.
        RefusedError: No text matches.
    """
    check_directory(directory)
    selection = select_text(directory, pattern=pattern, skip=skip, skipped=skipped)
    if not selection.files:
        raise RefusedError(
            f"no file of text below {str(directory)!r} matches pattern={pattern!r}, got "
            f"{selection}: pass --text DIR with text in it, or --pattern, for example '**/*.md'"
        )
    return selection


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
    corpora = Corpora.open(directory)
    return Prepared(tokenizer=tokenizer or Pretrained(directory / TOKENIZER), **vars(corpora))


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
    encoder = Text(tokenizer)
    if vocab_size is not None:
        encoder = within(encoder, vocab_size=vocab_size)
    sides = (text(train), text(held_out))
    corpora = write_sides(sides, directory, encoder=encoder, workers=workers, progress=progress)
    return Prepared(tokenizer=tokenizer, **vars(corpora))
