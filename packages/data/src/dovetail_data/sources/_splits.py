# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which files of a dataset repository belong to which split.

The rules are those of the Hub's documentation, "Structure your repository" and "Configure the
dataset": data_files in README.md if it names them, otherwise the names of the files.
"""

import collections
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
_ENTRY = re.compile(r"([\w-]+):(?:\s+(.*))?")

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

    ValueError for several configurations of which none is the default, and for YAML beyond plain
    lists, mappings and strings: no YAML parser is needed for what the Hub writes there.
    """
    readme = directory / "README.md"
    lines = _configs_of(readme.read_text(encoding="utf-8")) if readme.is_file() else []
    if not lines:
        return None
    try:
        configs = _value(lines, lines[0][0])
        if lines:
            raise ValueError(f"{lines[0][1]!r} out of place")
        patterns = _patterns(_default(configs))
    except ValueError as error:
        raise ValueError(
            f"the configs of README.md must say plainly which files a split has: got {readme}: "
            f"{error}. Give the files to parquet([...]), jsonl([...]) or arrow([...]) yourself."
        ) from error
    return {split: _glob(directory, globs) for split, globs in patterns.items()}


def _default(configs: Any) -> dict[str, Any]:
    if not isinstance(configs, list) or not all(isinstance(one, dict) for one in configs):
        raise ValueError("configs that are no list of mappings")
    usual = [one for one in configs if one.get("default") == "true"]
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
    for one in files or []:
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


def _configs_of(readme: str) -> list[tuple[int, str]]:
    """(indent, text) of each line under `configs:` in the front matter."""
    lines = readme.splitlines()
    if not lines or lines[0].rstrip() != "---":
        return []
    block: list[tuple[int, str]] = []
    inside = False
    for line in lines[1:]:
        text = line.strip()
        if text == "---":
            break
        if re.match(r"[\w-]+:", line):
            inside = line.startswith("configs:")
            text = text.removeprefix("configs:").strip() if inside else ""
        if inside and text and not text.startswith("#"):
            block.append((len(line) - len(line.lstrip()), text))
    return block


def _value(lines: list[tuple[int, str]], indent: int) -> Any:
    """Takes from `lines` the list or mapping that begins at `indent`, or a single string."""
    if lines[0][1].startswith("-"):
        return _list(lines, indent)
    if _ENTRY.fullmatch(lines[0][1]):
        return _mapping(lines, indent)
    return _string(lines.pop(0)[1])


def _list(lines: list[tuple[int, str]], indent: int) -> list[Any]:
    items: list[Any] = []
    while lines and lines[0][0] == indent and lines[0][1].startswith("-"):
        _, text = lines.pop(0)
        rest = text[1:].lstrip()
        if rest:  # what follows the dash is a value further to the right
            lines.insert(0, (indent + len(text) - len(rest), rest))
        if not lines or lines[0][0] <= indent:
            raise ValueError("an empty item")
        items.append(_value(lines, lines[0][0]))
    return items


def _mapping(lines: list[tuple[int, str]], indent: int) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    while lines and lines[0][0] == indent and (match := _ENTRY.fullmatch(lines[0][1])):
        lines.pop(0)
        name, rest = match.groups()
        if rest:
            entries[name] = _string(rest)
            continue
        # A list may stand below its name without an indent of its own.
        below = lines and (lines[0][0], lines[0][1].startswith("-")) >= (indent, True)
        if not below:
            raise ValueError(f"{name!r} without a value")
        entries[name] = _value(lines, lines[0][0])
    return entries


def _string(text: str) -> str:
    quoted = re.fullmatch(r"\"([^\"\\]*)\"|'([^']*)'", text)
    if quoted:
        return quoted.group(1) or quoted.group(2) or ""
    if text[0] in "[{\"'|>&*!%@`" or " #" in text or ": " in text:
        raise ValueError(f"{text!r}, not a plain or quoted string")
    return text
