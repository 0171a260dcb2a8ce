# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of events: one JSON object a line, appended and synced to the disk."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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

    A file that is missing has no events. An incomplete last line is left out: its writer was
    killed, or is about to complete it.

    Args:
        path: The file.
        unix: Whether its times are Unix times, in place of ISO 8601.
    """
    data = path.read_bytes() if path.is_file() else b""
    events, damage = [], []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        event = _parsed(line, (int, float) if unix else (str,))
        if event is None:
            damage.append(f"{path.name}:{number}: no event of a run: {excerpt(line)}")
        else:
            events.append(event)
    return events, damage


def excerpt(line: bytes) -> str:
    """Returns the beginning of a damaged line, quoted."""
    return repr(line.removesuffix(b"\n")[:_SHOWN].decode(errors="replace"))


def _parsed(line: bytes, time: tuple[type, ...]) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or type(event.get("event")) is not str:
        return None
    return event if isinstance(event.get("time"), time) else None
