# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A directory that Hugging Face `datasets` saved, or a copy of a dataset repository of the Hub."""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dovetail_data import compression
from dovetail_data.sources import _files, _splits
from dovetail_data.sources.arrow import ArrowFiles, arrow
from dovetail_data.sources.jsonl import jsonl
from dovetail_data.sources.parquet import parquet
from dovetail_data.sources.source import Source
from dovetail_data.sources.text import text

_FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
_NO_DATA = ("config.json", "dataset_info.json", "dataset_infos.json", "state.json")


def hf_directory(
    path: str | os.PathLike[str], *, split: str = "train", columns: Sequence[str] | None = None
) -> Source:
    """The records of one split of a dataset in the directory `path`.

    The directory is what `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, or a dataset
    repository with files of one format per split: .parquet, .arrow, JSON lines (.jsonl, .ndjson,
    .json) or .txt, where a file is one record; the last two also compressed (.gz, .bz2, .xz,
    .zst). Other files are passed over. Splits are those of data_files in README.md, otherwise
    found as `datasets` does: files SPLIT-00000-of-00001 at the top or in data/, else words such
    as "train" or "dev" in the names of directories, else of files, else all files are "train".
    Files in none of the splits so found are left out.

    columns: for .parquet and .arrow, as in `parquet`; elsewhere a ValueError, as are a split that
    is not there and one in several formats, naming what is. Parquet and Arrow need the extra
    `parquet`.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ValueError(
            f"a dataset must be a directory: got path={str(path)!r}. Correct its spelling, or "
            "give a single file to parquet(...), jsonl(...) or arrow(...)."
        )
    if (directory / "dataset_dict.json").is_file():
        splits = _read(directory / "dataset_dict.json", "splits")["splits"]
        _check_split(directory, split, splits)
        return _saved(directory / split, columns)
    if (directory / "state.json").is_file():
        saved = _read(directory / "state.json", "_data_files").get("_split")
        _check_split(directory, split, [saved or split])
        return _saved(directory, columns)
    return _repository(directory, split, columns)


def _saved(directory: Path, columns: Sequence[str] | None) -> ArrowFiles:
    state = _read(directory / "state.json", "_data_files")
    indices = [name for name, value in state.items() if name.startswith("_indices") and value]
    if indices:
        raise ValueError(
            f"a saved dataset must lie as its rows go: got {directory} with {indices}. Load it "
            "with datasets and save it again: save_to_disk applies them."
        )
    paths = [directory / one["filename"] for one in state["_data_files"]]
    source = arrow(paths, columns=columns)
    return dataclasses.replace(source, files=tuple(_files.named(paths)))  # the order of the state


def _repository(directory: Path, split: str, columns: Sequence[str] | None) -> Source:
    splits = _splits.declared(directory)
    if splits is None:
        splits = _splits.by_name(_data_files(directory))
    _check_split(directory, split, [name for name, files in splits.items() if files])
    files = [directory / name for name in splits[split]]
    formats = {name: _format(name) for name in splits[split]}
    kinds = sorted({str(kind) for kind in formats.values()})
    if len(kinds) > 1 or kinds == ["None"]:
        examples = [next(name for name in formats if str(formats[name]) == kind) for kind in kinds]
        raise ValueError(
            f"a split must be files of one format, of {sorted(_FORMATS)}: got {directory} with "
            f"split={split!r} in {examples}. Give the files of one to parquet([...]), "
            "jsonl([...]), arrow([...]) or text([...])."
        )
    return _source(kinds[0], files, columns)


def _source(kind: str, files: list[Path], columns: Sequence[str] | None) -> Source:
    packed = [str(file) for file in files if compression.suffix(str(file))]
    if kind in ("parquet", "arrow"):
        if packed:
            raise ValueError(
                f"{kind} files must not be compressed as a whole: got {packed}. Unpack them; "
                "their columns can be compressed inside."
            )
        return (parquet if kind == "parquet" else arrow)(files, columns=columns)
    if columns is not None:
        raise ValueError(
            f"columns are for parquet and arrow files: got columns={list(columns)} for {kind}. "
            "Leave it out: an encoder picks the fields that it needs."
        )
    if kind == "text":
        return text(files)
    _check_lines(files)
    return jsonl(files)


def _check_lines(files: list[Path]) -> None:
    """ValueError for a .json file that is one array: every line of it would be corrupt."""
    for file in files:
        if ".json" not in file.suffixes:
            continue
        with open(file, "rb") as stream:
            head = stream.read(64).lstrip()
        if head.startswith(b"["):
            raise ValueError(
                f"a .json file must have an object on each line: got {file}, an array. "
                "Write its items as lines: jq -c '.[]' in.json > out.jsonl."
            )


def _data_files(directory: Path) -> list[str]:
    """Files in a known format, relative to `directory`; hidden ones are left out, as the Hub's
    own cache lies in them."""
    names = [file.relative_to(directory) for file in directory.rglob("*") if _format(file.name)]
    return sorted(
        name.as_posix()
        for name in names
        if name.name not in _NO_DATA
        and not any(part.startswith((".", "__")) for part in name.parts)
        and (directory / name).is_file()
    )


def _format(name: str) -> str | None:
    return _FORMATS.get(Path(name.removesuffix(compression.suffix(name))).suffix)


def _check_split(directory: Path, split: str, splits: Iterable[str]) -> None:
    found = sorted(splits)
    if split not in found:
        raise ValueError(
            f"a split must be in the directory: got split={split!r}, {directory} has {found}. "
            "Choose one of those, or give files to parquet([...]), jsonl([...]) or arrow([...])."
        )


def _read(path: Path, name: str) -> dict[str, Any]:
    """The object of a JSON file, which has `name`."""
    try:
        content = json.loads(path.read_bytes())
        if name not in content:
            raise ValueError(f"no {name!r} in it")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"a saved dataset must be whole: got {path}: {error}. Save it again."
        ) from error
    return content
