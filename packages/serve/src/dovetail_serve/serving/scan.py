# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A look at the repository's directories: models, versions, and a fingerprint of each version.

A fingerprint is made of the name, size, inode and time of modification of every file, so a copy, a
replacement or a finished upload changes it, and no file is read. The time of change (`ctime`) is
left out: a hard link from another version moves it.

An entry that cannot be read (`lost+found`, a link to itself, a directory of another user) does not
affect the others. A version that cannot be read is listed too: its load then fails with the reason,
and a version that serves is not taken for a deleted one.
"""

import dataclasses
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from dovetail_serve.bundle.manifest import MANIFEST
from dovetail_serve.serving.versions import version_of
from dovetail_serve.types import NAME

Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Models:
    """Directories of a repository.

    Attributes:
        device: Number of the file system.
        names: Names of the models.
        ignored: Reason for each other directory, by name.
    """

    device: int
    names: tuple[str, ...]
    ignored: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of a model with a manifest. `ignored` gives the reason for each other directory."""

    fingerprints: Mapping[int, Fingerprint]
    ignored: Mapping[str, str]


def scan_models(root: Path) -> Models:
    """Lists the models of a repository. Hidden directories and files are none.

    Raises:
        OSError: The repository cannot be read.
        ValueError: `root` is itself a bundle or a model.
    """
    if has_manifest(root):
        raise ValueError(
            f"a repository must have a directory for each model, and {str(root)!r} is a bundle; "
            "move it to REPOSITORY/NAME/1 and give REPOSITORY"
        )
    device = root.stat().st_dev
    names, ignored = directories(root)
    for name in names:
        if not NAME.fullmatch(name):
            ignored[name] = "a model's name has letters, digits, '_', '-' and '.' alone"
        elif has_manifest(root / name):
            ignored[name] = f"it is a bundle; move it to {name}/1"
    listed = tuple(name for name in names if name not in ignored)
    return Models(device=device, names=listed, ignored=ignored)


def scan_versions(folder: Path) -> Versions:
    """Lists the versions of a model. Raises OSError; FileNotFoundError if it was deleted."""
    fingerprints = {}
    names, ignored = directories(folder)
    for name in sorted([*names, *ignored]):
        version = version_of(name)
        if version is None:
            ignored.setdefault(name, "a version is an integer from 1 without leading zeros")
        else:
            # The manifest last: a version deleted meanwhile has none, and none of its files counts.
            files = fingerprint(folder / name)
            if _may_have_manifest(folder / name):
                fingerprints[version] = files
                ignored.pop(name, None)
    return Versions(fingerprints=fingerprints, ignored=ignored)


def fingerprint(folder: Path) -> Fingerprint:
    """Returns the fingerprint of a directory's files, without reading them."""
    files = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.stat()
            except OSError:  # Deleted since it was listed, or a link to itself.
                continue
            relative = path.relative_to(folder).as_posix()
            files.append((relative, status.st_size, status.st_ino, status.st_mtime_ns))
    return tuple(sorted(files))


def has_manifest(folder: Path) -> bool:
    """Whether a directory has a manifest. False if it cannot be looked at."""
    return os.path.isfile(folder / MANIFEST)


def directories(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Lists the directories that are not hidden.

    Returns:
        Their names, and the reason for each entry that cannot be looked at.

    Raises:
        OSError: `folder` cannot be read.
    """
    names, unreadable = [], {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if not entry.name.startswith(".") and entry.is_dir():
                    names.append(entry.name)
            except OSError as error:
                unreadable[entry.name] = f"it cannot be read: {error.strerror}"
    return sorted(names), unreadable


def _may_have_manifest(folder: Path) -> bool:
    try:
        return stat.S_ISREG((folder / MANIFEST).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
