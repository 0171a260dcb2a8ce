# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights shared by versions of a model: one file on the disk, under a hard link in each bundle.

A version that differs only in programs, batch sizes or host functions needs no second copy of its
weights. But whoever writes into the file of one version writes into that of all, and on CPUs it is
a map of running models. So only a read-only file is shared.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from dovetail_serve.bundle.arrays import Leaf, Written, create_read_only, encode_header, stored
from dovetail_serve.bundle.digest import array_digest, digest, file_digest, on_all_cores
from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.bundle.manifest import WEIGHTS, Manifest
from dovetail_serve.errors import BundleError

_log = logging.getLogger(__name__)


def link_equal(file: Path, arrays: Mapping[str, Leaf], *, beside: Path) -> Written | None:
    """Makes `file` a hard link to the equal weights of another version, if there is one.

    A file whose header and arrays have equal digests is equal. The other file is read and compared
    with its own digest before, so that damage does not spread. It must have the owner and the
    permissions that a new file would have: read-only, and readable by the same users.

    Args:
        file: The new file of weights.
        arrays: Weights by name.
        beside: Path of the new version; its neighbours are the other versions.

    Returns:
        The file as `write_arrays` returns it, or None if no version has equal weights in such a
        file, or the file system has no hard links.
    """
    header = digest(encode_header(arrays)[0])
    digests: dict[str, str] = {}
    for folder in sorted(beside.parent.iterdir()):
        manifest = _manifest(folder) if folder != beside else None
        if manifest is None or manifest.files[WEIGHTS].header != header:
            continue
        digests = digests or dict(zip(arrays, on_all_cores(_digest, arrays.values()), strict=True))
        if digests != {name: entry.sha256 for name, entry in manifest.weights.items()}:
            continue
        entry = manifest.files[WEIGHTS]
        if not _link(folder / WEIGHTS, file, sha256=entry.sha256):
            continue
        return Written(bytes=entry.bytes, sha256=entry.sha256, header=header, arrays=digests)
    return None


def _digest(array: Leaf) -> str:
    return array_digest(stored(array))


def _manifest(folder: Path) -> Manifest | None:
    """Returns the manifest of a neighbour, or None for what is no bundle or a broken one."""
    if folder.name.startswith(".") or folder.is_symlink() or not folder.is_dir():
        return None
    try:
        return open_bundle(folder).manifest
    except (OSError, BundleError) as error:
        _log.info("%s is not considered for shared weights: %s", folder, error)
        return None


def _link(source: Path, file: Path, *, sha256: str) -> bool:
    """Links an intact file. Returns False if it is damaged, not as a new one, or not linkable."""
    with open(file, "xb", opener=create_read_only):
        fresh = _access(file)
    file.unlink()
    try:
        os.link(source, file, follow_symlinks=False)
    except OSError as error:  # another file system, too many links, links not permitted
        _log.info("weights are copied, since %s cannot be linked: %s", source, error)
        return False
    if _access(file) != fresh:
        reason = "has another owner or other permissions than a new file"
    elif file_digest(file) != sha256:
        reason = "differs from its digest"
    else:
        return True
    file.unlink()
    _log.warning("weights are copied, since %s %s", source, reason)
    return False


def _access(file: Path) -> tuple[int, int, int]:
    """Returns the kind and permissions, the owner and the group of a file."""
    status = file.lstat()
    return status.st_mode, status.st_uid, status.st_gid
