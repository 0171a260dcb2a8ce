# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which files of a dataset repository belong to which split.

The rules are those of the Hub's documentation, "Structure your repository" and "Configure the
dataset": data_files in README.md if it names them, otherwise the names of the files.
"""

import collections
import importlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

_KEYWORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "dev", "val"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_SHARD = re.compile(r"(?:data/)?([^/]+)-\d{5}-of-\d{5}[^/]*")
_SEPARATORS = re.compile(r"[-._ 0-9]+")

Splits = dict[str, list[str]]
"""The paths of the files of each split, relative to the repository, sorted."""


def by_name(names: Sequence[str]) -> Splits:
    """Splits by files SPLIT-00000-of-00001 at the top or in data/; else by the usual words in
    the names of directories, else of files; else everything is "train". Where a rule finds a
    split, files that it puts in none are left out."""
    shards: Splits = collections.defaultdict(list)
    for name in sorted(names):
        if match := _SHARD.fullmatch(name):
            shards[match.group(1)].append(name)
    directories = _by_keyword({name: PurePosixPath(name).parts[:-1] for name in names})
    files = _by_keyword({name: PurePosixPath(name).parts[-1:] for name in names})
    return dict(shards) or directories or files or {"train": sorted(names)}


def _by_keyword(parts: dict[str, tuple[str, ...]]) -> Splits:
    splits: Splits = collections.defaultdict(list)
    for name in sorted(parts):
        words = {word for part in parts[name] for word in _SEPARATORS.split(part)}
        for split, keywords in _KEYWORDS.items():
            if words & keywords:
                splits[split].append(name)
    return dict(splits)


def declared(directory: Path) -> Splits | None:
    """Splits by the `configs` at the top of README.md; None if it has none.

    ValueError for several configurations of which none is the default, and for one that says
    more than which files a split has. Needs the extra `hub` where there are configs.
    """
    readme = directory / "README.md"
    front = _front_matter(readme.read_text(encoding="utf-8")) if readme.is_file() else ""
    if not re.search(r"^configs\s*:", front, re.MULTILINE):
        return None
    yaml = _require_yaml()
    try:
        patterns = _patterns(_default(yaml.safe_load(front)["configs"]))
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the configs of README.md must say plainly which files a split has: got {readme}: "
            f"{reason}. Give the files to parquet([...]), jsonl([...]) or arrow([...]) yourself."
        ) from error
    return {split: _glob(directory, globs) for split, globs in patterns.items()}


def _front_matter(readme: str) -> str:
    """The YAML between the two lines --- at the top; "" without."""
    first, *lines = readme.splitlines() or [""]
    marks = (i for i, line in enumerate(lines) if line.rstrip() == "---")
    return "\n".join(lines[: next(marks, 0)]) if first.rstrip() == "---" else ""


def _require_yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError as error:
        raise ImportError(
            "a README.md with configs needs the package pyyaml, which is not installed: "
            "pip install 'dovetail-data[hub]'"
        ) from error


def _default(configs: Any) -> dict[str, Any]:
    if not isinstance(configs, list) or not all(isinstance(one, dict) for one in configs):
        raise ValueError("configs that are no list of mappings")
    usual = [one for one in configs if one.get("default") is True]
    usual = usual or [one for one in configs if one.get("config_name") == "default"] or configs
    if len(usual) > 1:
        raise ValueError(
            f"the configurations {[one.get('config_name') for one in configs]} without a default"
        )
    if "data_files" not in usual[0] or "data_dir" in usual[0]:
        raise ValueError(f"a configuration with {sorted(usual[0])}, not data_files alone")
    return usual[0]


def _patterns(config: dict[str, Any]) -> dict[str, list[str]]:
    files = config["data_files"]
    if isinstance(files, str) or _all_strings(files):
        files = [{"split": "train", "path": files}]
    patterns: dict[str, list[str]] = {}
    if not isinstance(files, list):
        raise ValueError(f"the data_files {files!r}, not files")
    for one in files:
        if not isinstance(one, dict) or set(one) != {"split", "path"} or one["split"] in patterns:
            raise ValueError(f"the data_files entry {one!r}, not one split and path")
        paths = [one["path"]] if isinstance(one["path"], str) else one["path"]
        if not _all_strings(paths) or not all(map(_is_within, paths)):
            raise ValueError(f"the path {one['path']!r}, not within the directory")
        patterns[one["split"]] = paths
    return patterns


def _is_within(path: str) -> bool:
    return "://" not in path and path[0] != "/" and ".." not in PurePosixPath(path).parts


def _all_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _glob(directory: Path, patterns: list[str]) -> list[str]:
    whole = [f"{pattern}/*" if pattern.endswith("**") else pattern for pattern in patterns]
    found = (file for pattern in whole for file in directory.glob(pattern) if file.is_file())
    return sorted({file.relative_to(directory).as_posix() for file in found})
