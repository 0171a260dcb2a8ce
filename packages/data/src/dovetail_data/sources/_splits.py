# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The splits of a dataset repository.

The rules are those of the Hub's documentation, "Structure your repository" and "Configure the
dataset": data_files in README.md if it names them, otherwise the names of the files.
"""

import collections
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from dovetail_data._arguments import require_package

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
    """Returns the splits by the names of the files.

    Files SPLIT-00000-of-00001 at the top or in data/ decide; else the usual words in the names of
    directories; else those in the names of files; else everything is "train". If a rule finds a
    split, files without one are left out.
    """
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
        words = {word for step in parts[name] for word in _SEPARATORS.split(step)}
        for split, keywords in _KEYWORDS.items():
            if words & keywords:
                splits[split].append(name)
    return dict(splits)


def declared(directory: Path) -> Splits | None:
    """Returns the splits from the `configs` at the top of README.md; None without configs.

    Needs the extra `hub` if there are configs.

    Raises:
        ValueError: There are several configurations without a default, or one that says more than
            the files of each split.
    """
    with _reading(directory, "configs must list the files of each split") as content:
        if "configs" not in content:
            return None
        patterns = _patterns(_default(content["configs"]))
    return {split: _glob(directory, globs) for split, globs in patterns.items()}


def declared_rows(directory: Path) -> dict[str, int]:
    """Returns `num_examples` of each split, from the `dataset_info` at the top of README.md.

    Needs the extra `hub` if it is there.

    Raises:
        ValueError: `dataset_info` is no mapping with splits, nor a list of those.
    """
    with _reading(directory, "dataset_info must list the rows of each split") as content:
        name = _default(content["configs"]).get("config_name") if "configs" in content else None
        return _rows(content.get("dataset_info"), name)


@contextlib.contextmanager
def _reading(directory: Path, rule: str) -> Iterator[dict[str, Any]]:
    """Yields the YAML at the top of README.md, if it has the key that `rule` begins with."""
    readme = directory / "README.md"
    front = _front_matter(readme.read_text(encoding="utf-8")) if readme.is_file() else ""
    key = rule.partition(" ")[0]
    if not re.search(rf"^{key}\s*:", front, re.MULTILINE):
        yield {}
        return
    yaml = _require_yaml()
    try:
        yield yaml.safe_load(front)
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the {key} of README.md {rule.partition(' ')[2]}: got {readme}: {reason}. Pass the "
            "files to parquet([...]), jsonl([...]) or arrow([...]) yourself."
        ) from error


def _rows(information: Any, config: str | None) -> dict[str, int]:
    """Returns the rows of each split of a configuration.

    Args:
        information: The dataset_info, of one configuration or a list of several.
        config: Name of the configuration. None: "default", or the only one.
    """
    several = information if isinstance(information, list) else [information]
    if information is None:
        return {}
    if not all(isinstance(entry, dict) for entry in several):
        raise ValueError(f"the entry {information!r:.60}, not a mapping or a list of those")
    named = [x for x in several if x.get("config_name", "default") == (config or "default")]
    if not named and config is None and len(several) == 1:
        named = several
    rows: dict[str, int] = {}
    for split in (named[0].get("splits") or []) if named else []:
        if not isinstance(split, dict) or not isinstance(split.get("name"), str):
            raise ValueError(f"the split {split!r:.60}, not a mapping with a name")
        count = split.get("num_examples")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise ValueError(f"num_examples: {count!r} of the split {split['name']!r}, no number")
        if count is not None:
            rows[split["name"]] = count
    return rows


def _front_matter(readme: str) -> str:
    """Returns the YAML between the two lines --- at the top; "" without."""
    first, *lines = readme.splitlines() or [""]
    marks = (i for i, line in enumerate(lines) if line.rstrip() == "---")
    return "\n".join(lines[: next(marks, 0)]) if first.rstrip() == "---" else ""


def _require_yaml() -> Any:
    what = "a README.md with configs or dataset_info needs"
    return require_package("yaml", what, package="pyyaml", extra="hub")


def _default(configs: Any) -> dict[str, Any]:
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        raise ValueError("configs that are no list of mappings")
    names = [config.get("config_name") for config in configs]
    usual = [config for config in configs if config.get("default") is True]
    usual = usual or [c for c, name in zip(configs, names, strict=True) if name == "default"]
    usual = usual or configs
    if len(usual) > 1:
        raise ValueError(f"the configurations {names} without a default")
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
    for file in files:
        if not isinstance(file, dict) or set(file) != {"split", "path"}:
            raise ValueError(f"the data_files entry {file!r}, not one split and path")
        split, path = file["split"], file["path"]
        if split in patterns:
            raise ValueError(f"the split {split!r} in two entries of data_files")
        paths = [path] if isinstance(path, str) else path
        if not _all_strings(paths) or not all(map(_is_within, paths)):
            raise ValueError(f"the path {path!r}, not within the directory")
        patterns[split] = paths
    return patterns


def _is_within(path: str) -> bool:
    return "://" not in path and path[0] != "/" and ".." not in PurePosixPath(path).parts


def _all_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


def _glob(directory: Path, patterns: list[str]) -> list[str]:
    whole = [f"{pattern}/*" if pattern.endswith("**") else pattern for pattern in patterns]
    files = (file for pattern in whole for file in directory.glob(pattern) if file.is_file())
    return sorted({file.relative_to(directory).as_posix() for file in files})
