# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The git commit of a directory. Runs git if it is installed.

git receives no environment of the caller: a variable could point it at another repository or make
it wait for input. Programs named by the repository's configuration are not started.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0  # of one question; a status of 100,000 files takes about 1


def state(directory: Path) -> dict[str, Any] | None:
    """Returns {"commit": hash, "dirty": bool}, or None outside of a repository.

    "dirty" says whether tracked files differ from the commit. It is None if git cannot tell.
    """
    commit = _ask(directory, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    changes = _ask(directory, "status", *options)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def state_of_file(file: Path) -> dict[str, Any] | None:
    """Returns the state of the repository with `file` under version control, or None.

    A repository around a virtual environment does not count if it does not track the file.
    """
    if _ask(file.parent, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    return state(file.parent)


def _ask(directory: Path, *line: str) -> str | None:
    """Returns git's output; None without git, outside of a repository, or after the timeout."""
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
