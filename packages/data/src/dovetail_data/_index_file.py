# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A table of spans on disk: made once, then mapped into memory.

One directory per packing, named by a digest of what it is a packing of. It appears whole, by one
rename, so that a process killed while writing leaves nothing that could be taken for an index, and
of several that write at once (the same bytes) one is kept. index.json beside the arrays has their
sizes and digests, and what the packing is of. A killed writer's directory, ".NAME.*.partial", may
be deleted.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from dovetail_data._durable import new_directory
from dovetail_data.spans import SpanTable

_FORMAT = 1  # counts changes of what the same packing puts into the same row
_ARRAYS = tuple(field.name for field in dataclasses.fields(SpanTable))
_INDEX = "index.json"


@dataclasses.dataclass(frozen=True)
class MappedTable(SpanTable):
    """A table in files. Pickles by their directory: processes share one copy in memory."""

    directory: Path

    def __reduce__(self) -> tuple[Callable[[Path], "MappedTable"], tuple[Path]]:
        return _mapped, (self.directory,)


def load(directory: Path, *, of: Mapping[str, str], build: Callable[[], SpanTable]) -> MappedTable:
    """The table of `of` (names and digests) in `directory`, built and written if it is not there.

    ValueError where what is there is not what was written.
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
        content = {"of": of, "files": {name: _entry(fresh, name) for name in _ARRAYS}}
        (fresh / _INDEX).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _verify(path: Path, of: Mapping[str, str]) -> None:
    remedy = f"Delete {path} and pack again."
    try:
        found = json.loads((path / _INDEX).read_text(encoding="utf-8"))
        files = {name: _entry(path, name) for name in _ARRAYS}
    except (OSError, ValueError) as error:
        raise ValueError(f"an index of rows must be whole: got {error}. {remedy}") from error
    if found == {"of": of, "files": files}:
        return
    if isinstance(found, dict) and found.get("of") != of:
        raise ValueError(
            f"an index of rows must be that of {of}: got one of {found.get('of')}. {remedy}"
        )
    raise ValueError(
        f"an index of rows must be as it was written: got {files}, {_INDEX} says {found}. {remedy}"
    )


def _file(path: Path, name: str) -> Path:
    return path / f"{name}.npy"


def _entry(path: Path, name: str) -> dict[str, int | str]:
    file = _file(path, name)
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": sha256}
