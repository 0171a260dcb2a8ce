# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files: selected below a directory, split into train and held-out, read one record each.

The split depends only on the paths below the directory, so a new file moves no other.
"""

import codecs
import dataclasses
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_path
from dovetail_data.sources import _files, compression
from dovetail_data.sources.source import Corrupt, Part, Record

Errors = Literal["strict", "replace"]
_BINARY_BYTES = 8000  # at the beginning of a file, in which git looks for a NUL
_BLOCK_BYTES = 1 << 20  # read at once


@_elsewhere.source
def text(
    paths: _files.Paths, *, pattern: str = "**/*.txt", errors: Errors = "strict"
) -> "TextFiles":
    """Reads each UTF-8 file as one record: {"text": content}, in the order of their names.

    Line ends and a byte order mark stay. A compressed file that is damaged or cut is corrupt as a
    whole.

    Args:
        paths: A file, a directory or a sequence of those.
        pattern: Glob for directories: "**/*.py" also finds files in subfolders, "*.py" does not. It
            also finds its matches with .gz, .bz2, .xz or .zst appended, and decompresses them (.zst
            needs the extra `zstd`).
        errors: "strict" reports a file that is not UTF-8 as corrupt. "replace" puts U+FFFD for
            bytes that are not UTF-8.

    Raises:
        ValueError: There is no file, a file comes twice, or `errors` is unknown.

    Example:

        >>> from pathlib import Path
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> text("a.txt")
        TextFiles(files=1, bytes=42)
    """
    if errors not in get_args(Errors):
        raise ValueError(
            f"errors must be one of {list(get_args(Errors))}: got errors={errors!r}. "
            'Pass errors="replace" to read what is not UTF-8.'
        )
    return TextFiles(files=_files.find(paths, pattern, compressed=True), errors=errors)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TextFiles(_files.Listed):
    """Text files as a source, from `text`. A part is a file."""

    files: tuple[_files.File, ...]
    errors: Errors

    @property
    def kind(self) -> str:
        return f"text errors={self.errors}"

    def parts(self) -> tuple[Part, ...]:
        return tuple(file.whole() for file in self.files)

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        if wrong := compression.disguise(part.path):
            yield Corrupt(wrong)
            return
        try:
            with compression.open_file(part.path) as stream:
                content = stream.read()
            text = content.decode("utf-8", errors=self.errors)
            del content  # not both in memory while the text is encoded
            yield {"text": text}
        except compression.Damaged as error:
            yield Corrupt(str(error))
        except UnicodeDecodeError as error:
            yield Corrupt(
                f"a text file must be UTF-8: got byte 0x{error.object[error.start]:02x} at offset "
                f"{error.start}. Convert the file, leave it out of `paths`, or pass "
                'errors="replace".'
            )

    def locate(self, part: Part, i: int) -> str:
        return part.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSelection:
    """Text files below a directory. `str` counts them and the skipped ones.

    Attributes:
        files: Sorted paths.
        skipped: Names, relative to the directory, of files without UTF-8 text.
        counts: Number of skipped files by reason.
    """

    files: list[Path]
    skipped: tuple[str, ...]
    counts: dict[str, int]

    def __repr__(self) -> str:
        return f"TextSelection({self})"

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.items())
        skipped = f"{sum(self.counts.values())} skipped" + (f" ({reasons})" if reasons else "")
        return f"{len(self.files)} files of text, {skipped}"


@_elsewhere.call
def select_text(
    directory: str | Path,
    *,
    pattern: str = "**/*",
    skip: Sequence[str] = (),
    skipped: Sequence[str] | None = None,
) -> TextSelection:
    """Selects the files of UTF-8 text below a directory, for `text`. There may be none.

    Skips hidden files and folders (.git, .DS_Store), `__pycache__`, files with a NUL byte near
    their beginning (git's test for binary files), and files that are not UTF-8. Compressed files
    are read as `text` reads them.

    Args:
        directory: Root of the files.
        pattern: Glob below it.
        skip: Names of folders to leave out.
        skipped: `skipped` of an earlier selection, so that a later one has the same files. None:
            read every file.

    Raises:
        ValueError: `directory` is not a directory.

    Example:

        >>> from pathlib import Path
        >>> Path("mixed").mkdir()
        >>> _ = Path("mixed/a.txt").write_text("To be"), Path("mixed/b.png").write_bytes(b"\\0")
        >>> select_text("mixed")
        TextSelection(1 files of text, 1 skipped (1 binary))
    """
    root = require_path("directory", directory)
    if not root.is_dir():
        came = "a file" if root.exists() else "which does not exist"
        raise ValueError(
            f"directory must be a directory: got directory={str(root)!r}, {came}. Pass one with "
            "text files, or files to text(...)."
        )
    counts: Counter[str] = Counter()
    paths: list[Path] = []
    for path in sorted(path for path in root.glob(pattern) if path.is_file()):
        names = path.relative_to(root).parts
        if any(name in skip for name in names):
            continue
        if any(name.startswith(".") for name in names):
            counts["hidden"] += 1
        elif "__pycache__" in names:
            counts["in __pycache__"] += 1
        else:
            paths.append(path)
    files, foreign = [], []
    for path in paths:
        name = path.relative_to(root).as_posix()
        reason = _foreign(path) if skipped is None else "without text" * (name in skipped)
        if reason:
            counts[reason] += 1
            foreign.append(name)
        else:
            files.append(path)
    return TextSelection(files=files, skipped=tuple(foreign), counts=dict(counts))


def _foreign(path: Path) -> str:
    """Returns the reason to skip a file; empty for text."""
    if compression.disguise(str(path)):
        return "binary"
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with compression.open_file(str(path)) as stream:
            block = stream.read(_BLOCK_BYTES)
            if b"\0" in block[:_BINARY_BYTES]:
                return "binary"
            while block:
                decoder.decode(block)
                block = stream.read(_BLOCK_BYTES)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "not UTF-8"
    except compression.Damaged:
        return "damaged"
    return ""


@_elsewhere.hold_out
def hold_out_files(
    files: Sequence[str | Path], *, root: str | Path, share: float
) -> tuple[list[Path], list[Path]]:
    """Splits files into (train, held out) by a hash of their paths below `root`.

    Add files, and all others stay on their side.

    Args:
        files: At least two.
        root: Directory above the files.
        share: Share of the files to hold out, in (0, 1). At least one is on each side.

    Raises:
        ValueError: There are fewer than two files, one is not below `root`, or `share` is outside
            (0, 1).

    Example:

        >>> from pathlib import Path
        >>> files = [Path(f"texts/{n}.txt") for n in range(5)]
        >>> train, held_out = hold_out_files(files, root="texts", share=0.2)
        >>> [path.name for path in held_out]
        ['1.txt', '2.txt']
    """
    check_share(share)
    if len(files) < 2:
        raise ValueError(
            f"a split into train and held-out needs at least 2 files, got {len(files)}: add files, "
            "or cut the text into several"
        )
    paths = list(map(Path, files))
    numbers = {path: fraction_of(path.relative_to(root).as_posix().encode()) for path in paths}
    held = {path for path in paths if numbers[path] < share}
    if not held:
        held = {min(paths, key=numbers.__getitem__)}
    elif len(held) == len(paths):
        held.remove(max(paths, key=numbers.__getitem__))
    return sorted(set(paths) - held), sorted(held)


@_elsewhere.call
def draw_files(files: Sequence[str | Path], *, size_bytes: int, seed: int = 0) -> list[Path]:
    """Draws files at random until they hold `size_bytes`, for a sample of a large text.

    Args:
        files: Files to draw from. All of them are drawn if they hold less.
        size_bytes: Least bytes of all drawn files, as they are stored.
        seed: Seed of the draw.

    Returns:
        The drawn files, sorted.

    Example:

        >>> from pathlib import Path
        >>> files = [Path(f"{n}.txt") for n in range(9)]
        >>> _ = [file.write_text("To be") for file in files]
        >>> len(draw_files(files, size_bytes=11))
        3
    """
    drawn = random.Random(seed).sample(list(map(Path, files)), len(files))
    sums = itertools.accumulate(file.stat().st_size for file in drawn)
    count = next((i for i, total in enumerate(sums, start=1) if total >= size_bytes), len(drawn))
    return sorted(drawn[:count])


def fraction_of(content: bytes) -> float:
    """Returns a number in [0, 1) that depends only on `content`."""
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big") / 2**48


def check_share(share: float) -> None:
    """Raises ValueError unless a share lies in (0, 1)."""
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1: got share={share}. Pass share=0.05.")
