# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which packages a change can break, as a JSON list for the workflow's matrix.

`python scripts/changed.py BASE`: a change under packages/NAME concerns NAME and the members that
depend on it; a change anywhere else concerns all. With an unknown BASE (a first push) all are
listed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

import workspace


def concerned(paths: Iterable[str]) -> list[str]:
    """The folders of the members that changes to `paths` can break, in alphabetical order."""
    everyone = workspace.members()
    touched = set()
    for path in paths:
        parts = path.split("/")
        if parts[0] != "packages" or len(parts) < 3:
            return sorted(everyone)
        touched.add(parts[1])
    names = {everyone[f].name for f in touched if f in everyone}
    return sorted(
        f for f, m in everyone.items() if names & {d.name for d in m.dependencies} or f in touched
    )


def changes(base: str) -> list[str]:
    """The files that differ between where `base` and HEAD parted and HEAD; [""] if unknown."""
    line = ["git", "-C", str(workspace.ROOT), "diff", "--name-only", f"{base}...HEAD"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else [""]


if __name__ == "__main__":
    print(json.dumps(concerned(changes(sys.argv[1]))))
