# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Assets: files for host functions, whose content is fixed at the export like the weights."""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail_serve.bundle.digest import digest, file_digest
from dovetail_serve.bundle.manifest import ASSETS, FileEntry
from dovetail_serve.types import check_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asset:
    """A file for host functions.

    Attributes:
        source: Its bytes, or its path, absolute and without links.
        entry: Its size and digest at the export.
    """

    source: bytes | Path
    entry: FileEntry


def read_assets(assets: Mapping[Any, Any]) -> dict[str, Asset]:
    """Checks the assets of an export, and computes the digests of their files.

    Args:
        assets: Paths or bytes by file name.

    Raises:
        TypeError: A value is neither a path nor bytes.
        FileNotFoundError: There is no file at a path.
        OSError: A file cannot be read.
        ValueError: A name cannot be that of a file.
    """
    return {name: _asset(name, source) for name, source in assets.items()}


def write_assets(folder: Path, assets: Mapping[str, Asset]) -> dict[str, FileEntry]:
    """Writes assets into a new bundle, and returns their entries in the manifest.

    Raises RuntimeError if a file has changed since the export.
    """
    if assets:
        (folder / ASSETS).mkdir()
    for name, asset in assets.items():
        file = folder / ASSETS / name
        if isinstance(asset.source, bytes):
            file.write_bytes(asset.source)
            continue
        shutil.copyfile(asset.source, file)
        if _entry(file) != asset.entry:
            raise RuntimeError(
                f"assets must not change between export and save, got other bytes of {name!r} "
                f"from {str(asset.source)!r}; call export again, or give it the bytes"
            )
    return {f"{ASSETS}/{name}": asset.entry for name, asset in assets.items()}


def _asset(name: Any, source: Any) -> Asset:
    check_name(name, "an asset")
    if isinstance(source, bytes):
        return Asset(source=source, entry=FileEntry(bytes=len(source), sha256=digest(source)))
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"assets must be paths or bytes, got {name!r} of type {type(source).__name__}; write "
            f"assets={{{name!r}: bytes(value)}} for its content"
        )
    path = Path(os.path.realpath(os.fsdecode(source)))
    if not path.is_file():
        state = "a directory" if path.is_dir() else "no file"
        raise FileNotFoundError(
            f"assets must be files, got {name!r}: {str(path)!r}, which is {state}; give the path "
            "of one file, or its content as bytes"
        )
    return Asset(source=path, entry=_entry(path))


def _entry(file: Path) -> FileEntry:
    return FileEntry(bytes=file.stat().st_size, sha256=file_digest(file))
