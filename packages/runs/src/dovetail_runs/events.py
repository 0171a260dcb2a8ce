# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of events: one JSON object a line, appended and synced to the disk."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_SHOWN = 60  # characters of a damaged line


def now() -> str:
    """Returns the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def append(path: Path, event: Mapping[str, Any]) -> None:
    """Appends a line and syncs it to the disk. An incomplete last line is removed first.

    Args:
        path: The file.
        event: The line, with "event" and "time".
    """
    line = json.dumps(event).encode() + b"\n"
    with path.open("a+b") as file:
        file.seek(0)
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, *, unix: bool = False) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the events of a file in order, and a message for each damaged line.

    Args:
        path: The file.
        unix: Whether its times are Unix times, in place of ISO 8601.
    """
    time = (int, float) if unix else (str,)
    return read_lines(path, lambda line: _event(line, time), "event of a run")


def read_lines(path: Path, parse: Callable[[Any], T], what: str) -> tuple[list[T], list[str]]:
    """Returns the lines of a file in order, and a message for each damaged one.

    A file that is missing has no lines. An incomplete last line is left out: its writer was killed,
    or is about to complete it.

    Args:
        path: The file.
        parse: Receives the JSON value of a line. It raises ValueError, KeyError or TypeError if the
            line is damaged.
        what: Name of a line in messages.
    """
    data = path.read_bytes() if path.is_file() else b""
    lines, damage = [], []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        try:
            lines.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            damage.append(f"{path.name}:{number}: no {what}: {excerpt(line)}")
    return lines, damage


def excerpt(line: bytes) -> str:
    """Returns the beginning of a damaged line, quoted."""
    return repr(line.removesuffix(b"\n")[:_SHOWN].decode(errors="replace"))


def _event(event: Any, time: tuple[type, ...]) -> dict[str, Any]:
    if type(event["event"]) is not str or not isinstance(event["time"], time):
        raise TypeError(event)
    return event
