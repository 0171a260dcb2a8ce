# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The safetensors files of a model: one file, a directory, or the files of an index.

`NAME.safetensors.index.json` gives the file of each tensor, and the total size:

    {"metadata": {"total_size": 1024}, "weight_map": {"embed.weight": "model-00001-of-00002..."}}

Our indices have two more entries in `metadata`: `dovetail.headers`, the sha256 stated in each
file's header (safetensors.py), and `dovetail.sha256`, that of the canonical JSON of the index with
"" in its place. They detect a missing, swapped or foreign file even if that file is intact.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail_checkpoint._safetensors import FormatError, parse_json
from dovetail_checkpoint.layout.safetensors import Header, read_header, stated_sha256
from dovetail_checkpoint.proof.report import Problem

INDEX_SUFFIX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_HEADERS = "dovetail.headers"
_SHA256 = "dovetail.sha256"


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a model.

    Attributes:
        directory: Their directory.
        headers: Header by file name.
        file_of: File name by tensor name.
        problems: Damaged or missing files; the rest is as the headers state it.
        proved: Whether every file and the index carry our digests.
    """

    directory: Path
    headers: Mapping[str, Header]
    file_of: Mapping[str, str]
    problems: tuple[Problem, ...]
    proved: bool


def find_files(path: Path) -> Files:
    """Reads the index and all headers at `path`: a file, an index, or a directory.

    Damage is listed, not raised.

    Raises:
        ValueError: `path` is none of these, or two files hold one tensor and no index decides.
    """
    if path.is_file() and path.name.endswith(_SUFFIX):
        return _files(path.parent, [path.name], None, [])
    index = path if path.is_file() and path.name.endswith(INDEX_SUFFIX) else _index_in(path)
    if index is not None:
        return _indexed(index)
    names = sorted(x.name for x in path.glob(f"*{_SUFFIX}")) if path.is_dir() else []
    if not names:
        raise ValueError(
            f"there must be safetensors files, got path={path}; give a directory that holds them, "
            f"a *{_SUFFIX} file or a *{INDEX_SUFFIX} file"
        )
    missing = sorted(_counted(names) - set(names))
    problems = [Problem(where=name, reason="the file is missing") for name in missing]
    files = _files(path, names, None, problems)
    if any(_NUMBERED.fullmatch(name) and files.headers[name].sha256 for name in files.headers):
        lost = Problem(where=f"*{INDEX_SUFFIX}", reason="the index of these files is missing")
        return replace(files, problems=(*files.problems, lost), proved=False)
    return files


def encode_index(headers: Mapping[str, Header]) -> str:
    """Returns the text of the index of files with digests."""
    weight_map = {name: file for file, header in headers.items() for name in header.tensors}
    sizes = (t.stop - t.start for header in headers.values() for t in header.tensors.values())
    metadata = {
        "total_size": sum(sizes),
        _HEADERS: {file: header.sha256 for file, header in headers.items()},
        _SHA256: "",
    }
    document = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    metadata[_SHA256] = stated_sha256(document)
    return json.dumps(document, indent=2) + "\n"


def _index_in(path: Path) -> Path | None:
    indices = sorted(path.glob(f"*{INDEX_SUFFIX}")) if path.is_dir() else []
    if len(indices) > 1:
        raise ValueError(
            f"a directory must hold one index, got {[x.name for x in indices]} in {path}; "
            "give the path of one of them"
        )
    return indices[0] if indices else None


def _indexed(index: Path) -> Files:
    try:
        weight_map, stated = _decode_index(index)
    except (FormatError, OSError) as error:
        problem = Problem(where=index.name, reason=str(error))
        return Files(
            directory=index.parent, headers={}, file_of={}, problems=(problem,), proved=False
        )
    names = sorted({*weight_map.values(), *(stated or ())})
    files = _files(index.parent, names, weight_map, [])
    problems = list(files.problems)
    for name, header in files.headers.items():
        if stated is None and header.sha256 is not None:
            problems.append(Problem(where=index.name, reason=f"has lost the proof that {name} has"))
        elif stated is not None and stated.get(name) != header.sha256:
            problems.append(Problem(where=name, reason="is not the file that the index is about"))
    proved = files.proved and stated is not None
    return replace(files, problems=tuple(problems), proved=proved)


def _decode_index(path: Path) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Returns the map of an index, and the sha256 of each file if recorded. Raises FormatError."""
    document = parse_json(path.read_bytes())
    weight_map, metadata = document.get("weight_map"), document.get("metadata", {})
    if not isinstance(weight_map, dict) or not isinstance(metadata, dict):
        raise FormatError("has no weight_map, or metadata that is no object")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(_SUFFIX) or "/" in file or "\\" in file:
            raise FormatError(f"says that {name!r} lies in {file!r}, which is no file beside it")
    stated, sha256 = metadata.get(_HEADERS), metadata.get(_SHA256)
    if (stated is None) != (sha256 is None):
        raise FormatError("has lost half of its proof")
    if stated is not None:
        blank = {**document, "metadata": {**metadata, _SHA256: ""}}
        if not isinstance(stated, dict) or stated_sha256(blank) != sha256:
            raise FormatError("does not have the sha256 that it states")
    return weight_map, stated


def _files(
    directory: Path, names: list[str], weight_map: Mapping[str, str] | None, problems: list[Problem]
) -> Files:
    headers, problems = {}, list(problems)
    for name in names:
        try:
            headers[name] = read_header(directory / name)
        except FileNotFoundError:
            problems.append(Problem(where=name, reason="the file is missing"))
        except (FormatError, OSError) as error:
            problems.append(Problem(where=name, reason=str(error)))
    holders = defaultdict(list)
    for name, header in headers.items():
        for tensor in header.tensors:
            holders[tensor].append(name)
    for tensor, file in (weight_map or {}).items():
        if file not in headers:
            continue  # named above
        if file not in holders[tensor]:
            problems.append(Problem(where=file, reason=f"has no tensor {tensor!r}, as it should"))
        else:
            holders[tensor] = [file]
    twice = [tensor for tensor, files in holders.items() if len(files) > 1]
    if twice:
        raise ValueError(
            f"each tensor must lie in one file, got {twice[0]!r} in {holders[twice[0]]} of "
            f"{directory}; give the path of one file, or of an index"
        )
    return Files(
        directory=directory,
        headers=headers,
        file_of={tensor: files[0] for tensor, files in holders.items() if files},
        problems=tuple(problems),
        proved=not problems and all(header.sha256 for header in headers.values()),
    )


def _counted(names: list[str]) -> set[str]:
    """Returns the files that must exist, by the count in the names of the existing ones."""
    matches = filter(None, map(_NUMBERED.fullmatch, names))
    stems = {(match[1], match[3]) for match in matches}
    return {
        f"{stem}-{i:05d}-of-{count}{_SUFFIX}"
        for stem, count in stems
        for i in range(1, int(count) + 1)
    }
