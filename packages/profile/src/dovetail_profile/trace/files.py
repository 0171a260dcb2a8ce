# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a trace: FOLDER/plugins/profile/RUN/HOST.xplane.pb, as `jax.profiler` writes them.

RUN is the time of the capture, or a common name of several processes with a file each.
"""

import gzip
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import Space, parse
from dovetail_profile.wire import Damaged

_ENDINGS = (".xplane.pb", ".xplane.pb.gz")
# From the folder of one run to the folder of a training run, which keeps its traces in a folder.
_FOLDERS = ("", "*", "profile/*", "plugins/profile/*", "*/plugins/profile/*")
_MAKE = "record one with `with dovetail_profile.capture():` or `with jax.profiler.trace(FOLDER):`"


def load(path: str | os.PathLike[str]) -> Recording:
    """Reads a trace.

    Args:
        path: A file `*.xplane.pb` or `*.xplane.pb.gz`, the folder of one run with a file for each
            host, or a folder written by `jax.profiler`. Of several runs the newest is read.

    Raises:
        ValueError: The path is absent, or the folder has no trace.
        Damaged: A file is no whole trace.
    """
    place = Path(path)
    if place.is_file():
        return recording_of([place])
    if not place.exists():
        raise ValueError(
            f"a trace must be a file or a folder, got {str(place)!r}, which does not exist; {_MAKE}"
        )
    for pattern in _FOLDERS:
        folders = [place] if not pattern else place.glob(pattern)
        runs = {folder: files for folder in folders if (files := _files(folder))}
        if runs:
            newest = max(runs, key=lambda run: max(f.stat().st_mtime_ns for f in runs[run]))
            note = f"The folder has {len(runs)} traces. This is the newest, {newest.name}."
            return recording_of(runs[newest], notes=[note] * (len(runs) > 1))
    raise ValueError(
        f"a folder of traces must hold a file *.xplane.pb, or plugins/profile/*/*.xplane.pb, got "
        f"{str(place)!r} without one; {_MAKE}"
    )


def recording_of(files: Sequence[Path], *, notes: Sequence[str] = ()) -> Recording:
    """Reads the files of one run, one for each host. Raises Damaged."""
    spaces = [_space(file) for file in files]
    names = [space.host for space in spaces]
    if "" in names or len(set(names)) < len(names):  # several processes of one machine
        names = [file.name.split(".xplane.pb")[0] for file in files]
    return Recording(spaces, names, files=files, notes=notes)


def _files(folder: Path) -> list[Path]:
    """Returns the traces in a folder by name, without a compressed copy of a plain one."""
    if not folder.is_dir():
        return []
    files = sorted(file for file in folder.iterdir() if file.name.endswith(_ENDINGS))
    plain = Counter(file.name.removesuffix(".gz") for file in files)
    return [f for f in files if f.suffix != ".gz" or plain[f.name.removesuffix(".gz")] == 1]


def _space(file: Path) -> Space:
    try:
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return parse(data)
    except (Damaged, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Damaged(
            f"{file} must be a trace of jax.profiler, a whole *.xplane.pb file, got bytes that end "
            f"too early or are something else ({error}); {_MAKE}"
        ) from None
