# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of the Hugging Face Hub by their ids, through huggingface_hub where it is installed.

The cache is asked first, and a whole copy there is used as it is: no request leaves the machine.
HF_HUB_OFFLINE, HF_HOME and the token act as in huggingface_hub.
"""

import contextlib
import json
import re
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*[\w](@[\w./-]+)?")
# What a model and its tokenizer consist of, and second copies of the weights in other formats.
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer*"]
_COPIES = ["consolidated*", "original/*", "onnx/*"]
_SCHEME = re.compile(r"[a-z][a-z0-9+]+:/")
_OF_HUB = re.compile(r"(?:(?:https?|hf):/+)?(?:huggingface\.co/|hf\.co/)?([\w.-]+/[\w.-]+)(.*)")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def is_id(path: str | Path) -> bool:
    """Whether `path` is an id `org/name` or `org/name@revision`, and not a path in a folder here.

    Example:

        >>> is_id("Qwen/Qwen3-0.6B"), is_id("./models/mine"), is_id("/models/mine")
        (True, False, False)
    """
    name = Path(path).as_posix() if isinstance(path, Path) else path
    if not _ID.fullmatch(name) or Path(path).exists():
        return False
    # A folder of that name means a mistyped path.
    return not Path(name.partition("/")[0]).is_dir()


class AbsentError(FileNotFoundError):
    """An id of the Hub that cannot be read here and now."""

    exit_code = 1  # of a command: the id may be right


def resolve(path: str | Path) -> Path:
    """Returns the directory of a path or of a Hub id.

    Args:
        path: A path, which is returned as it is, or an id `org/name` or `org/name@revision`. An id
            is looked up in the cache of huggingface_hub, then downloaded: JSON, safetensors,
            tokenizer, template and text files.

    Raises:
        ValueError: It is an address, or an id with a tag as of GGUF files.
        FileNotFoundError: huggingface_hub is not installed, is offline without a whole copy in its
            cache, or cannot download the id.

    Example:

        >>> resolve("./models/mine").name
        'mine'
    """
    if not is_id(path):
        _check_local(Path(path))
        return Path(path)
    name, _, revision = Path(path).as_posix().partition("@")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import HF_HUB_OFFLINE
    except ImportError as error:
        raise AbsentError(
            f"An id of the Hugging Face Hub needs huggingface_hub, got path={str(path)!r}, no "
            "directory here. Install it: pip install 'dovetail-models[hub]'."
        ) from error
    options = {"revision": revision or None, "allow_patterns": _FILES, "ignore_patterns": _COPIES}
    cached = None
    with contextlib.suppress(OSError):  # not in the cache, or only a part of it
        cached = Path(snapshot_download(name, local_files_only=True, **options))
    if cached is not None and _is_whole(cached):
        return cached
    if HF_HUB_OFFLINE:
        copy = "no copy in the cache" if cached is None else f"a part of it in {str(cached)!r}"
        raise AbsentError(
            f"Offline (HF_HUB_OFFLINE) a model must be whole in the cache, got path={str(path)!r} "
            f"with {copy}. Type where there is a network: {_line(name, revision)}"
        )
    try:
        return Path(snapshot_download(name, **options))
    except (OSError, ValueError) as error:
        raise AbsentError(
            f"A model must be a directory or an id of the Hugging Face Hub, got path={str(path)!r} "
            f"({_first_line(error)}). Correct it, or log in (hf auth login) for a gated model, and "
            f"type: {_line(name, revision)}"
        ) from error


def _check_local(path: Path) -> None:
    """Raises ValueError for an address, and for an id with a tag."""
    name, exists = path.as_posix(), path.exists()
    tagged = re.fullmatch(r"[\w.-]+/[\w.-]+:[\w.-]+", name)
    if exists or not (
        tagged or _SCHEME.match(name) or name.startswith(("huggingface.co/", "hf.co/"))
    ):
        return
    of_hub = _OF_HUB.fullmatch(name)
    if of_hub and (tagged or "huggingface.co" in name or "hf.co" in name or name.startswith("hf:")):
        advice = f"type hf download {of_hub[1]}, and pass {of_hub[1]!r}"
        why = "a tag of GGUF files, where safetensors are read" if tagged else "an address"
    else:
        advice, why = "copy it to this machine, and pass its directory", "an address"
    shown = re.sub(r":/+", "://", name)
    raise ValueError(
        f"A model must be a directory or an id org/name of the Hugging Face Hub, got "
        f"path={shown!r}, {why}: {advice}."
    )


def _is_whole(directory: Path) -> bool:
    """Whether a snapshot has config.json and all files of its weights."""
    if not (directory / "config.json").is_file():
        return False
    if (directory / WEIGHTS).is_file():
        return True
    try:
        files = set(json.loads((directory / INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, LookupError, AttributeError):
        return False
    return all((directory / file).is_file() for file in files)


def _line(name: str, revision: str) -> str:
    return f"hf download {name}" + (f" --revision {revision}" if revision else "")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
