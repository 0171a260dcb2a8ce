# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Wheels of the members in build/wheels, built once for every session and Python.

They hold no compiled code, so one wheel serves all Pythons. A member is built anew when a file of
its folder has changed. Each wheel is made from the source distribution, as a release is.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import workspace

# For `python -c`: imports every module that users may import; programs and names with an underscore
# are not. A folder that needs an extra of its package may say so instead.
IMPORT_ALL = """
import importlib, pkgutil, {module} as package
extra = "pip install '{module}[".replace("_", "-")
for found in pkgutil.walk_packages(package.__path__, "{module}."):
    if not any(part.startswith("_") for part in found.name.split(".")):
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if not found.ispkg or extra not in str(error):
                raise
"""
FOLDER = workspace.ROOT / "build" / "wheels"
# Of the environment of nox if it has one, else of the user.
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv") or "uv"


def digest(folder: Path) -> str:
    """Of the names and contents of the files below `folder` that git does not ignore."""
    line = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*line, "--exclude-standard"], check=True, capture_output=True).stdout
    total = hashlib.sha256()
    for name in sorted(filter(None, listed.decode().split("\0"))):
        file = folder / name
        if file.is_file():  # not one that is deleted and still in the index
            total.update(f"{name}\0{file.stat().st_size}\0".encode())
            total.update(file.read_bytes())
    return total.hexdigest()


def built(member: workspace.Member) -> Path:
    """Returns the wheel of the member as it is now; builds it if there is none."""
    parent = FOLDER / member.folder
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two sessions, one build
        folder = parent / digest(member.path)
        if not folder.is_dir():
            partial = parent / "partial"
            for old in (path for path in parent.iterdir() if path.is_dir()):
                shutil.rmtree(old)
            line = [UV, "build", "--quiet", str(member.path), "--out-dir", str(partial)]
            subprocess.run(line, check=True)
            partial.rename(folder)  # at last, so that an interrupted build is begun again
        (wheel,) = folder.glob("*.whl")
        return wheel
