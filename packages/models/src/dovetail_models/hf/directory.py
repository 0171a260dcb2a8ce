# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face directory: config.json and the headers of the safetensors files."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from dovetail_models.hf import safetensors
from dovetail_models.hf.errors import FilesError, MissingError
from dovetail_models.hf.foreign import conversion
from dovetail_models.hf.safetensors import Spec
from dovetail_models.tables.table import listed

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"


def read_config(path: Path) -> dict[str, Any]:
    """Returns the keys of config.json.

    Raises:
        FileNotFoundError: The directory has no config.json.
        ValueError: The file is not a JSON object.
    """
    if not (path / CONFIG_FILE).is_file():
        remedy = conversion(path) or "Pass the directory that save or save_pretrained wrote."
        raise FileNotFoundError(
            f"A model is a directory with config.json and *.safetensors, got path={str(path)!r}. "
            f"{remedy}"
        )
    return _json(path / CONFIG_FILE)


def read_generation(path: Path) -> dict[str, Any]:
    """Returns the keys of generation_config.json; empty without the file.

    Raises ValueError if the file is not a JSON object.
    """
    file = path / GENERATION_FILE
    return _json(file) if file.is_file() else {}


def read_specs(path: Path) -> dict[str, Spec]:
    """Reads the specs of all tensors from the file headers.

    As in transformers, a model.safetensors is the whole model, and an index beside it is not read.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is damaged, two files hold one tensor, or the index does not fit its
            files.
    """
    where = _index(path)
    files = sorted(set(where.values())) or [WEIGHTS_FILE]
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        remedy = (None if where else conversion(path)) or "Fetch those files."
        raise MissingError(
            f"The directory must hold {listed(files)}, got {str(path)!r} without "
            f"{listed(missing)}. {remedy}"
        )
    specs: dict[str, Spec] = {}
    for file in files:
        tensors = safetensors.header(path / file)
        twice = sorted(tensors.keys() & specs.keys())
        if twice:
            raise FilesError(
                f"A tensor must be in one file, got {listed(twice)} in {specs[twice[0]].file.name} "
                f"and {file}. Keep one of them, and rewrite {INDEX_FILE}."
            )
        specs |= tensors
    for name, file in where.items():
        if name not in specs or specs[name].file.name != file:
            raise FilesError(
                f"{INDEX_FILE} must name the file that holds a tensor, got {name}={file!r}, which "
                "lacks it. Fetch the index that belongs to these files."
            )
    return specs


def checksums(
    path: Path, *, folders: Sequence[str] = (), suffixes: Collection[str]
) -> dict[str, str]:
    """Returns SHA-256 digests in hexadecimal by relative path, sorted by it.

    Args:
        path: The directory.
        folders: Names of folders in it whose files count too. An absent one has none.
        suffixes: Suffixes of the files that count, such as ".json".
    """
    files = {
        file.relative_to(path).as_posix(): file
        for folder in (path, *(path / name for name in folders if (path / name).is_dir()))
        for file in folder.iterdir()
        if file.suffix in suffixes
    }
    digests = {}
    for name, file in sorted(files.items()):
        with file.open("rb") as opened:
            digests[name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return digests


def _index(path: Path) -> dict[str, str]:
    """Returns {tensor: file} from the index, or {} without an index that counts."""
    if (path / WEIGHTS_FILE).is_file() or not (path / INDEX_FILE).is_file():
        return {}
    where = _json(path / INDEX_FILE).get("weight_map")
    if not isinstance(where, dict) or not where or not all(map(_is_plain, where.values())):
        wrong = [v for v in where.values() if not _is_plain(v)] if isinstance(where, dict) else []
        raise FilesError(
            f"weight_map of {INDEX_FILE} must map each tensor to the name of a file beside it, got "
            f"{listed(map(repr, wrong[:3])) or type(where).__name__} in {str(path)!r}. Fetch the "
            "index again."
        )
    return where


def _is_plain(name: Any) -> bool:
    """Whether `name` is a file name in the directory itself, not a path to another place."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _json(path: Path) -> dict[str, Any]:
    try:
        return safetensors.parse_json(path.read_bytes())
    except ValueError as error:
        raise FilesError(
            f"{path.name} must be a JSON object, got {str(path)!r}: {error}. Fetch or write it "
            "again."
        ) from error
