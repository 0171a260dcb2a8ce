# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a source at URLs, fetched to the user's cache directory before they are read.

A write reads each file several times, to hash it and to decode it, and a part at any place. A file
that changes at its URL is fetched to another place.
"""

import posixpath
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dovetail_data.sources import _shards
from dovetail_data.sources._remote import Store, cache_directory

Remote: TypeAlias = tuple[str, Store, str, dict[str, Any]]
"""The URL of a file, its store, its name in the store, and what the file system says of it."""


def find(urls: Sequence[str], patterns: Sequence[str]) -> list[Remote]:
    """Returns the files at URLs.

    Args:
        urls: Files or directories.
        patterns: Globs for directories.

    Raises:
        ValueError: A URL does not exist.
    """
    out: list[Remote] = []
    for url in urls:
        store = Store(url)
        of_file = store.information("")
        if of_file is not None and of_file.get("type") != "directory":
            out.append((store.url, store, "", of_file))
            continue
        matches = {n: entry for pattern in patterns for n, entry in store.files(pattern).items()}
        _shards.check(list(matches), where=url)
        if of_file is None and not matches:
            raise ValueError(f"a source must exist: got path={url!r}. Correct its spelling.")
        out += [(f"{store.url}/{name}", store, name, entry) for name, entry in matches.items()]
    return out


def fetch(files: Sequence[Remote]) -> list[tuple[str, Path]]:
    """Returns the name of each file, relative to the deepest directory with all, and its copy.

    Raises:
        OSError: The disk has too little room, or a file could not be fetched.
    """
    # Without the scheme: two slashes would become one.
    paths = [url.partition("://")[2] for url, *_ in files]
    root = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    cache = cache_directory() / "sources"
    copies = [
        cache / store.key(name, entry) / posixpath.basename(url)
        for url, store, name, entry in files
    ]
    sizes = [int(entry["size"]) for *_, entry in files]
    absent = [i for i, copy in enumerate(copies) if not copy.is_file()]
    cache.mkdir(parents=True, exist_ok=True)
    needed, free = sum(sizes[i] for i in absent), shutil.disk_usage(cache).free
    if needed > free:
        raise OSError(
            f"the files of a source must fit the disk: got {needed} bytes in {root}, {free} free "
            f"in {cache}. Point XDG_CACHE_HOME to a larger disk, or give fewer files."
        )
    for i in absent:
        _, store, name, _ = files[i]
        store.download(name, copies[i], size=sizes[i], sha256=None)
    return [(posixpath.relpath(path, root), copy) for path, copy in zip(paths, copies, strict=True)]
