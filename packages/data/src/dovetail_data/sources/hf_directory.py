# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of Hugging Face `datasets`: saved datasets, and copies of repositories of the Hub."""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dovetail_data import _elsewhere
from dovetail_data._arguments import is_remote, require_name, require_path
from dovetail_data.sources import _files, _shards, _splits, compression
from dovetail_data.sources.arrow import ArrowFiles, arrow
from dovetail_data.sources.jsonl import JsonLines, jsonl
from dovetail_data.sources.parquet import ParquetFiles, parquet
from dovetail_data.sources.source import Source
from dovetail_data.sources.text import TextFiles, text

_FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
Options: TypeAlias = dict[str, Any]
"""Arguments of `parquet` and `arrow` by name."""

_NO_DATA = ("config.json", "dataset_info.json", "dataset_infos.json", "state.json")


@_elsewhere.source
def hf_directory(
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    json_columns: Sequence[str] | None = None,
) -> Source:
    """Reads one split of a Hugging Face dataset in a directory.

    The directory comes from `Dataset.save_to_disk` or `DatasetDict.save_to_disk`, or is a dataset
    repository with files of one format per split: .parquet, .arrow, JSON lines (.jsonl, .ndjson,
    .json) or .txt (one record per file). The last two may be compressed (.gz, .bz2, .xz, .zst).
    Other files are passed over.

    Splits are those of data_files in README.md. Without these, they follow from names, as in
    `datasets`: files SPLIT-00000-of-00001 at the top or in data/; else words such as "train" or
    "dev" in the names of directories; else in those of files; else all files are "train". Files
    without a split are then left out.

    A split must be whole: all shards that the names SPLIT-00000-of-00003 announce, and as many rows
    (of .txt: lines or files) as README.md has in `dataset_info`.

    Args:
        path: The directory.
        split: Name of the split.
        columns: Top-level columns to read, for .parquet and .arrow only. Default: all.
        json_columns: As of `parquet`, for the same files.

    Raises:
        ValueError: The directory or the split is missing, a split has several formats, lacks shards
            or rows, or `columns` is given for a format without columns.
        ImportError: The extra `parquet` is missing for Parquet or Arrow files.

    Example:

        >>> from pathlib import Path
        >>> Path("web").mkdir()
        >>> _ = Path("web/train.jsonl").write_text('{"text": "Hello"}')
        >>> hf_directory("web", split="train")
        JsonLines(files=1, bytes=17)
    """
    if is_remote(path):
        raise ValueError(
            f"a dataset with splits must be local: got path={path!r}. Give the URLs of the files "
            "of one split to parquet(...), jsonl(...) or text(...)."
        )
    directory = require_path("path", path)
    require_name("split", split, "train")
    if not directory.is_dir():
        raise ValueError(
            f"a dataset must be a directory: got path={str(path)!r}. Correct its spelling, or "
            "give a single file to parquet(...), jsonl(...) or arrow(...)."
        )
    given = {"columns": columns, "json_columns": json_columns}
    options = {name: names for name, names in given.items() if names is not None}
    if (directory / "dataset_dict.json").is_file():
        splits = _read(directory / "dataset_dict.json", "splits")["splits"]
        _check_split(directory, split, splits)
        return _saved(directory / split, options)
    if (directory / "state.json").is_file():
        saved = _read(directory / "state.json", "_data_files").get("_split")
        _check_split(directory, split, [saved or split])
        return _saved(directory, options)
    return _repository(directory, split, options)


def _saved(directory: Path, options: Options) -> ArrowFiles:
    state = _read(directory / "state.json", "_data_files")
    indices = [name for name, value in state.items() if name.startswith("_indices") and value]
    if indices:
        raise ValueError(
            f"a saved dataset must lie as its rows go: got {directory} with {indices}. Load it "
            "with datasets and save it again: save_to_disk applies them."
        )
    paths = [directory / file["filename"] for file in state["_data_files"]]
    source = arrow(paths, **options)
    return dataclasses.replace(source, files=tuple(_files.named(paths)))  # the order of the state


def _repository(directory: Path, split: str, options: Options) -> Source:
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
    _shards.check_directory(files, where=str(directory))
    source = _source(kinds[0], files, options)
    rows = _splits.declared_rows(directory)
    if split in rows:
        _check_rows(source, rows[split], f"{directory} with split={split!r}")
    return source


def _check_rows(source: Source, declared: int, where: str) -> None:
    """Raises ValueError unless a split has as many rows as its README.md says."""
    if isinstance(source, TextFiles):  # a row of `datasets` is a line, or with an option a file
        lines, files = _lines(source), len(source.files)
        if lines is not None and declared not in (lines, files):
            raise ValueError(
                f"a split must have the rows of README.md, lines or files of text: got {where}, "
                f"{lines} lines in {files} files, and num_examples: {declared}. Fetch the missing "
                "files, correct README.md, or give the files to text([...])."
            )
    elif isinstance(source, JsonLines | ArrowFiles | ParquetFiles):
        count = source.count()
        if count not in (None, declared):
            raise ValueError(
                f"a split must have the rows of README.md: got {where}, {count} rows, and "
                f"num_examples: {declared}. Fetch the missing files, correct README.md, or give "
                "the files to parquet([...]), jsonl([...]) or arrow([...])."
            )


def _lines(source: TextFiles) -> int | None:
    """Returns the lines of all files, None if one is damaged: reading says so."""
    lines = 0
    try:
        for file in source.files:
            with compression.open_file(file.path) as stream:
                lines += sum(1 for _ in stream)
    except compression.Damaged:
        return None
    return lines


def _source(kind: str, files: list[Path], options: Options) -> Source:
    packed = [str(file) for file in files if compression.suffix(str(file))]
    if kind in ("parquet", "arrow"):
        if packed:
            raise ValueError(
                f"{kind} files must not be compressed as a whole: got {packed}. Unpack them; "
                "their columns can be compressed inside."
            )
        return (parquet if kind == "parquet" else arrow)(files, **options)
    for name, names in options.items():
        raise ValueError(
            f"{name} are for parquet and arrow files: got {name}={list(names)} for {kind}. "
            "Leave it out: an encoder picks the fields that it needs."
        )
    if kind == "text":
        return text(files)
    _check_lines(files)
    return jsonl(files)


def _check_lines(files: list[Path]) -> None:
    """Raises ValueError for a .json file that is one array: every line of it would be corrupt."""
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
    """Returns files in a known format, relative to `directory`.

    Hidden files are left out: the Hub's own cache is among them.
    """
    names = [file.relative_to(directory) for file in directory.rglob("*") if _format(file.name)]
    return sorted(
        name.as_posix()
        for name in names
        if name.name not in _NO_DATA
        and not any(step.startswith((".", "__")) for step in name.parts)
        and (directory / name).is_file()
    )


def _format(name: str) -> str | None:
    return _FORMATS.get(Path(name.removesuffix(compression.suffix(name))).suffix)


def _check_split(directory: Path, split: str, splits: Iterable[str]) -> None:
    names = sorted(splits)
    if split not in names:
        raise ValueError(
            f"a split must be in the directory: got split={split!r}, {directory} has {names}. "
            "Choose one of those, or give files to parquet([...]), jsonl([...]) or arrow([...])."
        )


def _read(path: Path, name: str) -> dict[str, Any]:
    """Returns the object of a JSON file, which must have the entry `name`."""
    try:
        content = json.loads(path.read_bytes())
        if name not in content:
            raise ValueError(f"no {name!r} in it")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"a saved dataset must be whole: got {path}: {error}. Save it again."
        ) from error
    return content
