# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The runs in a directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail_runs.run import SETTINGS, Run, seen
from dovetail_runs.summary import Summary, summary


@dataclass(frozen=True, kw_only=True)
class Found:
    """The content of a directory.

    Attributes:
        runs: Runs by name of their folder.
        summaries: The row of each run.
        damaged: Messages by name of the folder, for runs that cannot be read.
        foreign: Names of the other folders.
    """

    runs: Mapping[str, Run]
    summaries: Mapping[str, Summary]
    damaged: Mapping[str, str]
    foreign: Sequence[str]

    def __repr__(self) -> str:
        return f"Found({', '.join(self.runs) or 'no runs'}; {len(self.damaged)} damaged)"


def find(directory: str | Path, *, tags: Sequence[str] = ()) -> Found:
    """Reads all runs in a directory. If the directory is a run, reads that run alone.

    Args:
        directory: The directory. Its folders are not searched further.
        tags: Tags that a run must have, all of them.

    Raises:
        ValueError: `directory` is not a directory.
    """
    top = Path(directory)
    if not top.is_dir():
        raise ValueError(f"runs lie in a directory, got {str(top)!r}, {seen(top)}: name another")
    is_run = (top / SETTINGS).is_file()
    entries = [top] if is_run else sorted(entry for entry in top.iterdir() if entry.is_dir())
    runs, summaries, damaged, foreign = {}, {}, {}, []
    for entry in entries:
        name = entry.name or str(entry.resolve().name)
        if not (entry / SETTINGS).is_file():
            foreign.append(name)
            continue
        try:
            row = summary(Run(entry))
        except (ValueError, OSError) as error:
            damaged[name] = str(error)
            continue
        if set(tags) <= set(row.tags):
            runs[name], summaries[name] = Run(entry), row
    return Found(runs=runs, summaries=summaries, damaged=damaged, foreign=foreign)
