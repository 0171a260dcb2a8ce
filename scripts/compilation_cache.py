# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The test suites' persistent compilation cache: its folder, its settings, its size, its repair.

Compilation is most of a JAX test's time, so the suites keep what XLA compiled between runs. JAX
does the caching, and its keys name the jaxlib, the processor and the compression. A cache that
cannot be used never fails a run: it only costs time, and one line says so.

Programs on several CPU devices stay outside (see forced_devices.py). `JAX_COMPILATION_CACHE_DIR`,
if set, is respected; `JAX_ENABLE_COMPILATION_CACHE=false` turns the cache off.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

LIMIT_BYTES = 2 << 30  # one Python's suites fill about a tenth of it
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # thousands of small programs add up
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
# JAX's warning about an entry that it could not read or write; the group names the program.
FAULT = re.compile(r"Error (?:reading|writing) persistent compilation cache entry for '([^']*)'")


def root() -> Path:
    """The folder in the user's cache directory. RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail/compiled"


def choose(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables that turn the cache on, and why it stays off ("" if it does not).

    Args:
        environment: The variables that are set already, such as os.environ.

    Returns:
        Variables to add, none if the user has chosen a folder or none can be used; and the reason
        in one line if none can be used.
    """
    if "JAX_COMPILATION_CACHE_DIR" in environment:
        return {}, ""
    try:
        root().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root()).close()
    except (OSError, RuntimeError) as error:
        return {}, f"off, so everything is compiled anew: {error}"
    return {"JAX_COMPILATION_CACHE_DIR": str(root()), **SETTINGS}, ""


def trim(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Deletes the entries in sub-folders of `folder` that were unused for longest.

    JAX's own limit locks the folder and lists it for each new entry.
    """
    entries = []
    for path in folder.glob("*/*-cache"):
        with contextlib.suppress(OSError):  # another process trims, too
            status = path.stat()
            entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = 0
    for _, size, path in sorted(entries, reverse=True):
        total += size
        if total > limit_bytes:
            with contextlib.suppress(OSError):
                path.unlink()


def repair(folder: Path, warning: str) -> None:
    """Deletes the entries of the program that a warning of JAX names: it never overwrites one."""
    match = FAULT.search(warning)
    for path in folder.glob(f"{glob.escape(match[1])}-*-cache") if match else ():
        with contextlib.suppress(OSError):
            path.unlink()


if __name__ == "__main__":  # for programs that are not pytest's: the variables as JSON
    print(json.dumps(choose(os.environ)[0]))
