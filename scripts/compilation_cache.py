# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The test suites' persistent compilation cache: its folder, its settings, its size, its repair.

Compilation is most of a JAX test's time, so the suites keep what XLA compiled between runs. JAX
does the caching; this module chooses the folder and keeps it healthy. One folder serves one
Python, jaxlib, kind of processor and compression, because an entry of another jaxlib or processor
is useless at best, and JAX cannot read an entry that was compressed otherwise than it would.

A cache that cannot be used never fails a run: it only costs time, and one line says so. For that,
entries get a checksum, which JAX leaves out where it compresses with zstd: one flipped bit in an
executable would end the process that runs it.

Programs on several CPU devices stay outside (see forced_devices.py). `JAX_COMPILATION_CACHE_DIR`,
if set, is respected; `JAX_ENABLE_COMPILATION_CACHE=false` turns the cache off.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

LIMIT_BYTES = 2 << 30  # all folders together; one Python's suites fill about a tenth of it
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # thousands of small programs add up
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
# The frame header's fifth byte holds the flags: RFC 8878, section 3.1.1.1.
_ZSTD_HEADER_BYTES, _ZSTD_CHECKSUM = 5, 0x04
# JAX's warning about an entry that it could not read or write; the group names the program.
FAULT = re.compile(r"Error (?:reading|writing) persistent compilation cache entry for '([^']*)'")


def root() -> Path:
    """The folder of all caches, in the user's cache directory. RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail/compiled"


def kind() -> str:
    """The name of the folder that serves this interpreter on this processor."""
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    packed = sys.version_info >= (3, 14) or importlib.util.find_spec("zstandard") is not None
    compression = "zstd" if packed else "zlib"
    jaxlib = f"jaxlib{importlib.metadata.version('jaxlib')}"
    return f"{python}-{jaxlib}-{compression}-{_processor()}"


def _processor() -> str:
    """A digest of what XLA compiles for: the processor's model and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = sorted({x for x in lines if x.startswith(("model name", "flags", "Features"))})
    except OSError:  # no Linux
        named = [platform.processor()]
    return hashlib.sha256("\n".join([platform.machine(), *named]).encode()).hexdigest()[:8]


def choose(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables that turn the cache on, and why it stays off ("" if it does not).

    Args:
        environment: The variables that are set already, such as os.environ.

    Returns:
        Variables to add, none if the cache stays off or the user has set it up; and the reason in
        one line if no folder can be used.
    """
    off = environment.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in ("0", "false", "off")
    if off or "JAX_COMPILATION_CACHE_DIR" in environment:
        return {}, ""
    try:
        folder = root() / kind()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 65536)
    except (OSError, RuntimeError, importlib.metadata.PackageNotFoundError) as error:
        return {}, f"off, so everything is compiled anew: {error}"
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), **SETTINGS}, ""


def trim(folder: Path, limit_bytes: int = LIMIT_BYTES) -> int:
    """Deletes the entries that were unused for longest until the rest fits; the count of them."""
    entries, total = [], 0
    for path in folder.glob("*/*-cache"):
        with contextlib.suppress(OSError):  # another process trims, too
            status = path.stat()
            entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
            total += status.st_size
    deleted = 0
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            deleted += 1
        total -= size
    return deleted


def repair(folder: Path, warning: str) -> bool:
    """Deletes the entries of the program that JAX warned of, since JAX never overwrites one.

    Args:
        folder: The folder that JAX was given.
        warning: The text of any warning.

    Returns:
        Whether the warning was about this cache.
    """
    match = FAULT.search(warning)
    if match is None:
        return False
    for path in folder.glob("*-cache"):
        # "<program>-<digest>-cache"; the name may hold characters that a glob would interpret.
        if path.name.rsplit("-", 2)[0] == match[1]:
            with contextlib.suppress(OSError):
                path.unlink()
    return True


def protect(folder: Path) -> int:
    """Gives a checksum to each zstd entry that has none, and deletes what does not decompress.

    JAX's next read of a damaged entry then is an error, which JAX survives. Entries in zlib have a
    checksum from the start. JAX's own compression has no option for it.

    Returns:
        The number of entries that were rewritten.
    """
    try:
        import zstandard
    except ImportError:
        return 0
    with_checksum = zstandard.ZstdCompressor(write_checksum=True)
    written = 0
    for path in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # full disk, another process: the entry stays as it is
            with path.open("rb") as file:
                head = file.read(_ZSTD_HEADER_BYTES)
                if len(head) == _ZSTD_HEADER_BYTES and head[4] & _ZSTD_CHECKSUM:
                    continue
                packed = head + file.read()
            try:
                content = zstandard.ZstdDecompressor().decompress(packed)
            except zstandard.ZstdError:
                path.unlink()  # cut by a kill or by a full disk
                continue
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            beside.write_bytes(with_checksum.compress(content))
            beside.replace(path)
            written += 1
    return written


if __name__ == "__main__":  # for programs that are not pytest's: the variables as JSON
    print(json.dumps(choose(os.environ)[0]))
