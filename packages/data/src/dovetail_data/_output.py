# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The directory of a corpus while it is written."""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dovetail_data import _staged
from dovetail_data.ledger import Ledger
from dovetail_data.sources.source import Part

_SHARD = re.compile(r"(?P<partial>partial-([0-9a-f]{8}-)?)?(?P<number>\d{5,})\.(array_record|npy)")
_PARTIAL = re.compile(r"\.[\w.]+\.[0-9a-f]{8}\.partial")  # of a file whose writer was killed


def check_outside(directory: Path, parts: Sequence[Part]) -> None:
    """Raises ValueError if the source has files in `directory`: the corpus would change it."""
    root = os.path.join(os.path.abspath(directory), "")
    inside = next((p.path for p in parts if p.path.startswith(root)), None)
    if inside is not None:
        raise ValueError(
            f"a corpus's directory must not hold files of its source: got {inside} in "
            f"directory={directory}. Give a directory outside, or a pattern that leaves it out."
        )


def tidy(directory: Path, shards: int) -> None:
    """Deletes shards behind the last, of a source before it was mended, and unfinished files."""
    for path in directory.iterdir():
        match = _SHARD.fullmatch(path.name)
        stale = match and (match["partial"] or int(match["number"]) >= shards)
        if stale or _PARTIAL.fullmatch(path.name):
            path.unlink()
    if (directory / _staged.NAME).exists():
        shutil.rmtree(directory / _staged.NAME)


@contextmanager
def disk_advice(directory: Path, ledger: Ledger) -> Iterator[None]:
    """Adds advice to the error of a full disk. ArrayRecord reports it as a RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(
            getattr(error, "errno", None) or errno.EIO,
            f"the disk must take the corpus: got {error} in directory={directory}. Free space and "
            f"call write(...) again: it goes on from {len(ledger.lines)} finished shards.",
        ) from error
