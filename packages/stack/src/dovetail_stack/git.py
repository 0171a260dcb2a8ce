# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which commit a directory is at: asked of git, if there is one, and of nothing else.

git gets neither the caller's environment, which could lead it to another repository or make it wait
for an answer, nor a program that the repository's configuration names.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0  # of one question; a status of 100,000 files takes about 1


def state(directory: Path) -> dict[str, Any] | None:
    """{"commit": its hash, "dirty": whether tracked files differ from it}; None without any.

    dirty is None where git could not tell.
    """
    commit = _ask(directory, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    changes = _ask(directory, "status", *options)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def state_of_file(file: Path) -> dict[str, Any] | None:
    """The same of the repository that has `file` under version control.

    Not of one around it that does not track it, as around a virtual environment.
    """
    if _ask(file.parent, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    return state(file.parent)


def _ask(directory: Path, *line: str) -> str | None:
    """What git answers; None without git, without a repository, and when it takes too long."""
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-c", "core.fsmonitor=false", "-C", str(directory), *line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env={
                "PATH": os.defpath,
                "HOME": os.path.expanduser("~"),  # which directories of others are trusted
                "LC_ALL": "C",
                "GIT_OPTIONAL_LOCKS": "0",  # never in the way of another git
                "GIT_TERMINAL_PROMPT": "0",
            },
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
