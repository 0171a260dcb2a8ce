# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A table of spans on disk: made once, then mapped into memory.

Each packing has one directory, named by a digest of its inputs. It appears whole, by one rename: a
process killed while writing leaves nothing that could be taken for an index, and of several
simultaneous writers (of the same bytes) one wins. index.json beside the arrays has their sizes and
digests, and the inputs of the packing. A killed writer's directory, ".NAME.*.partial", may be
deleted.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_data._durable import new_directory
from dovetail_data.damage import DamageError
from dovetail_data.rows.token_rows import SpanTable

_FORMAT = 1  # counts changes of the rows that the same packing makes
_ARRAYS = tuple(field.name for field in dataclasses.fields(SpanTable))
_INDEX = "index.json"


@dataclasses.dataclass(frozen=True)
class MappedTable(SpanTable):
    """A table in files. It pickles as their directory: processes share one copy in memory."""

    directory: Path

    def __reduce__(self) -> tuple[Callable[[Path], "MappedTable"], tuple[Path]]:
        return _mapped, (self.directory,)


def load(directory: Path, *, of: Mapping[str, str], build: Callable[[], SpanTable]) -> MappedTable:
    """Returns the table of a packing, built and written if it is not on disk.

    Args:
        directory: Directory for tables.
        of: Names and digests of the packing's inputs.
        build: Builds the table.

    Raises:
        DamageError: The files differ from those written.
    """
    of = {"format": str(_FORMAT), **of}
    name = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:32]
    path = directory / name
    if not path.exists():
        _write(path, of, build())
    _verify(path, of)
    return _mapped(path)


def _mapped(path: Path) -> MappedTable:
    # Plain arrays over the mappings: memmap's own indexing costs microseconds a call.
    arrays = {name: np.asarray(np.load(_file(path, name), mmap_mode="r")) for name in _ARRAYS}
    return MappedTable(**arrays, directory=path)


def _write(path: Path, of: Mapping[str, str], table: SpanTable) -> None:
    # If the path exists, another process was first, with the same bytes.
    with suppress(FileExistsError), new_directory(path) as fresh:
        for name in _ARRAYS:
            with _file(fresh, name).open("wb") as file:
                np.save(file, getattr(table, name))
        files = {name: _entry(fresh, name) for name in _ARRAYS}
        (fresh / _INDEX).write_bytes(_content(of, files))


def _verify(path: Path, of: Mapping[str, str]) -> None:
    """Raises DamageError unless the files of a table are those that were written."""
    index = path / _INDEX
    remedy = f"Delete {path} and pack again."
    try:
        content = index.read_bytes()
        files = {name: _entry(path, name) for name in _ARRAYS}
    except OSError as error:
        raise DamageError(f"an index of rows must be whole: got {error}. {remedy}") from error
    if content == _content(of, files):
        return
    stored = _stored(content)
    if stored.get("of", of) != of:
        raise DamageError(
            f"an index of rows must be that of {of}: got {index} of {stored['of']}. {remedy}"
        )
    entries = stored.get("files")
    known = entries if isinstance(entries, dict) else files
    differ = [str(_file(path, name)) for name in _ARRAYS if known.get(name) != files[name]]
    other = f" and {', '.join(differ)}" if differ else ""
    raise DamageError(
        f"an index of rows must be as it was written: got {index}{other} with another digest. "
        f"{remedy}"
    )


def _stored(content: bytes) -> dict[str, Any]:
    """Returns the object of an index file; empty if its bytes are none."""
    try:
        stored = json.loads(content)
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) else {}


def _content(of: Mapping[str, str], files: Mapping[str, Any]) -> bytes:
    return json.dumps({"of": of, "files": files}, indent=1).encode()


def _file(path: Path, name: str) -> Path:
    return path / f"{name}.npy"


def _entry(path: Path, name: str) -> dict[str, int | str]:
    file = _file(path, name)
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": sha256}
