# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a profile, by their suffix."""

import contextlib
import dataclasses
import gzip
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from warnings import warn

from dovetail_profile.page.content import content
from dovetail_profile.page.document import document, library, packed
from dovetail_profile.page.events import events, kept
from dovetail_profile.page.headline import headline
from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table
from dovetail_profile.trace.recording import Recording

VERSION = 1  # of the JSON file
BYTES = 950_000  # of a page beside the plotting library
EVENTS = 500_000  # of a trace: Perfetto loads them in seconds
_ROWS = (20_000, 5_000, 1_000, 200)  # of a table of a page: the most that fit

Tables = Mapping[str, Table[Any]]


def save(
    path: str | os.PathLike[str],
    recording: Recording,
    tables: Callable[[], Tables],
    *,
    peaks: Peaks | None = None,
) -> Path:
    """Writes a profile to a file. The caller of `Profile.save` gets the warning.

    Args:
        path: A name with the end .html, .json or .json.gz.
        recording: The trace.
        tables: Returns the tables by name; see `content`. A trace calls it never.
        peaks: Limits of the device, for the lines of the roofline.

    Raises:
        ValueError: The name ends in another way.
        ImportError: A page is asked for, and Plotly is missing.
    """
    target = Path(path)
    if target.name.endswith(".json.gz"):
        mask = kept(recording, EVENTS)
        with _replacing(target) as file, gzip.GzipFile("", "wb", 3, file, mtime=0) as compressed:
            compressed.writelines(text.encode() for text in events(recording, mask))
        if left := int((~mask).sum()):
            warn(
                f"{left:,} of {len(mask):,} events of the host are left out of {target.name}: the "
                "shortest calls of Python functions. Operations and annotations are all in it.",
                stacklevel=3,
            )
        return target
    if target.suffix not in (".html", ".json"):
        raise ValueError(
            "a profile is saved as a page (.html), as tables (.json) or as a trace for Perfetto "
            f"(.json.gz), got path={os.fspath(path)!r}: write 'report.html', 'profile.json' or "
            "'trace.json.gz'"
        )
    if target.suffix == ".html":
        script = library()
        text = page(tables(), headline(recording), recording.notes, peaks=peaks, script=script)
    else:
        text = json_of(tables(), headline(recording), recording.notes)
    with _replacing(target) as file:
        file.write(text.encode())
    return target


def page(
    tables: Tables,
    headline: Sequence[tuple[str, str]],
    warnings: Sequence[str] = (),
    *,
    peaks: Peaks | None = None,
    script: str,
) -> str:
    """Returns a page of tables.

    Args:
        tables: By name; see `content`.
        headline: Names and values.
        warnings: Sentences.
        peaks: Limits of the device.
        script: The plotting library.
    """
    data = ""
    for most in _ROWS:
        parts = content(tables, peaks, most=most)
        data = packed({"headline": headline, "warnings": warnings, "parts": parts})
        if len(data) <= BYTES:
            break
    return document(data, title="Profile", script=script)


def json_of(tables: Tables, headline: Sequence[tuple[str, str]], warnings: Sequence[str]) -> str:
    """Returns a JSON object with all tables.

    Args:
        tables: By name.
        headline: Names and values.
        warnings: Sentences.
    """
    values = {
        "version": VERSION,
        "headline": dict(headline),
        "warnings": warnings,
        "tables": {
            name: {"rows": [_row(row) for row in table], "notes": table.notes}
            for name, table in tables.items()
        },
    }
    return json.dumps(values, allow_nan=False, indent=1)


def _row(row: Any) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(row).items()
    }


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """Opens a file beside the target. At the end of the block it takes the target's place."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
