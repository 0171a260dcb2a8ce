# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The checks on record as passed: .ci/passed.jsonl, written by `.ci/run` alone.

Each line holds a check's name, its key (scripts/changed.py), date, commit and CPU seconds. A record
counts for 14 days, and only if its commit is in the history of HEAD. A whole pass has a line of its
own, with the name WHOLE. It may take several runs, such as a first one that fails and a second one
after a repair, within a day.

Nothing on record counts if the tree is dirty, the clone is shallow or the file is damaged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import reach

DAYS = 14
PASS_DAYS = 1  # runs of one whole pass
WHOLE = "everything"
COMMIT_DIGITS = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One check that passed."""

    check: str
    key: str  # "" for a whole pass
    date: str  # in UTC
    commit: str  # first digits of the tested one
    cpu_s: float

    def days(self, today: datetime.date) -> int:
        """The age in days."""
        return (today - datetime.date.fromisoformat(self.date)).days


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """The records that count for the commit at hand, by check. Their keys are today's."""

    passed: Mapping[str, Record] = dataclasses.field(default_factory=dict)
    reason: str = ""  # why no record counts, or only those of the last day
    whole: Record | None = None  # the last whole pass
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)  # with any key


def today() -> datetime.date:
    """The day in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def read(file: Path) -> list[Record]:
    """The records of a file, none without it.

    Raises:
        ValueError: A line is no record.
    """
    if not file.exists():
        return []
    records = []
    text = file.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        try:
            records.append(Record(**json.loads(line)))
            records[-1].days(today())
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number} of {reach.RECORD} is no record: {error}") from None
    return records


def standing(root: Path, keys: Mapping[str, str], *, everything: bool = False) -> Standing:
    """The records that count in a checkout with these keys; none for `everything`."""
    file = root / reach.RECORD
    try:
        records = read(file)
    except ValueError as error:
        return Standing(reason=str(error))
    costs = {r.check: r.cpu_s for r in records}
    history = set(_git(root, "rev-list", f"--abbrev={COMMIT_DIGITS}", "--abbrev-commit", "HEAD"))
    known = [r for r in records if r.days(today()) <= DAYS and r.commit in history]
    whole = max((r for r in known if r.check == WHOLE), key=lambda r: r.date, default=None)
    reason = "it was asked for" if everything else unusable(root)
    if not reason and not records:
        reason = f"{reach.RECORD} is missing or empty"
    if reason:
        return Standing(reason=reason, whole=whole, costs=costs)
    if whole is None:
        reason = f"no whole pass is within {DAYS} days, so only records since yesterday count"
        known = [r for r in known if r.days(today()) <= PASS_DAYS]
    passed = {r.check: r for r in known if keys.get(r.check) == r.key}
    return Standing(passed=passed, reason=reason, whole=whole, costs=costs)


def unusable(root: Path) -> str:
    """Why records neither count nor can be added here; "" if they can."""
    if _git(root, "rev-parse", "--is-shallow-repository") == ["true"]:
        return "the clone is shallow, so its history does not show the commits on record"
    changes = _git(root, "status", "--porcelain", "--untracked-files=all")
    if changes := [change for change in changes if change[3:] != reach.RECORD]:
        return f"the tree is dirty, so its files are those of no commit: {', '.join(changes[:3])}"
    return ""


def add(root: Path, passed: Mapping[str, float], keys: Mapping[str, str]) -> None:
    """Appends checks that passed, with their CPU seconds and keys, in one write."""
    (commit,) = _git(root, "rev-parse", f"--short={COMMIT_DIGITS}", "HEAD")
    date = today().isoformat()
    lines = [
        Record(check=c, key=keys.get(c, ""), date=date, commit=commit, cpu_s=round(cpu_s, 1))
        for c, cpu_s in passed.items()
    ]
    text = "".join(json.dumps(dataclasses.asdict(line)) + "\n" for line in lines)
    with (root / reach.RECORD).open("a", encoding="utf-8") as file:
        file.write(text)  # small, so that two processes do not mix their lines


def trim(root: Path) -> None:
    """Leaves the last record of each check; drops damaged lines and records that are too old."""
    file = root / reach.RECORD
    if not file.exists():
        return
    newest: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError):
            record = Record(**json.loads(line))
            if record.days(today()) <= DAYS:
                newest[record.check] = line
    beside = root / "build" / f"passed.{os.getpid()}"  # git ignores it, if a kill leaves it there
    beside.parent.mkdir(exist_ok=True)
    beside.write_text("".join(f"{newest[c]}\n" for c in sorted(newest)), encoding="utf-8")
    beside.replace(file)


def close(root: Path, keys: Mapping[str, str]) -> bool:
    """Ends a run without a failure: records a whole pass if this run completes one, and trims.

    Returns:
        Whether a whole pass was recorded.
    """
    trim(root)
    recent = [r for r in read(root / reach.RECORD) if r.days(today()) <= PASS_DAYS]
    complete = keys.keys() <= {r.check for r in recent if keys.get(r.check) == r.key}
    if complete:
        add(root, {WHOLE: 0.0}, {})
        trim(root)
    return complete


def _git(root: Path, *line: str) -> list[str]:
    return subprocess.check_output(["git", "-C", str(root), *line], text=True).splitlines()
