# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Notes and tags of a run, `notes.jsonl`: written by people, before, during and after a launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_runs.events import append, now, read

FILE = "notes.jsonl"


@dataclass(frozen=True, kw_only=True)
class Note:
    """A text about a run.

    Attributes:
        time: When it was written, in UTC, as ISO 8601.
        text: The text.
    """

    time: str
    text: str


def write(run: Path, event: str, **values: str) -> None:
    """Appends a note, a tag or the removal of one.

    Args:
        run: The folder of the run.
        event: "note", "tag" or "untag".
        **values: Its text, or the tag.
    """
    append(run / FILE, {"event": event, "time": now(), **values})


def read_notes(run: Path) -> tuple[list[Note], list[str]]:
    """Returns the notes in order, and the tags in alphabetical order."""
    events, _ = read(run / FILE)
    notes = [Note(time=e["time"], text=str(e["text"])) for e in events if _is(e, "note", "text")]
    return notes, sorted(_tags(events))


def checked_tag(tag: str) -> str:
    """Returns a tag. ValueError if it is empty, has blanks or begins with a dash."""
    if not tag or tag.startswith("-") or any(c.isspace() or not c.isprintable() for c in tag):
        words = "".join(c if c.isprintable() else " " for c in tag).strip("- ").split()
        joined = "-".join(words) or "baseline"
        raise ValueError(f"a tag must be a word without blanks, got {tag!r}: write {joined!r}")
    return tag


def _tags(events: Sequence[Mapping[str, Any]]) -> set[str]:
    tags: set[str] = set()
    for event in events:
        if _is(event, "tag", "tag"):
            tags.add(str(event["tag"]))
        elif _is(event, "untag", "tag"):
            tags.discard(str(event["tag"]))
    return tags


def _is(event: Mapping[str, Any], kind: str, field: str) -> bool:
    return event["event"] == kind and field in event
