# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shards by their names, SPLIT-00000-of-00003.ENDING: whether all of them are there.

A download that was cut short leaves fewer files, and each of those is sound. Numbers start at 0, as
`datasets` and TFDS write them, or at 1. A digest may follow the number, one for each file.
"""

import collections
import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

_log = logging.getLogger(__name__)
_NAME = re.compile(
    r"(?P<split>.*?)-(?P<i>\d{3,})-of-(?P<n>\d{3,})(?:-[0-9a-f]{8,})?(?P<end>(?:\.\w+)*)"
)
_LISTED = 5  # missing shards in a message

Set: TypeAlias = dict[int, dict[int, list[str]]]
"""Names of shards by their number, by the total that they name."""


def check_directory(files: Iterable[Path], *, where: str) -> None:
    """Raises ValueError unless each set of shards with one of `files` is whole on the disk.

    Shards that a pattern left out on purpose count as there.

    Args:
        files: The files to read.
        where: The directory, for messages.
    """
    folders = collections.defaultdict(set)
    for file in files:
        if key := _key(file.name):
            folders[file.parent].add(key)
    for folder, keys in folders.items():
        check(os.listdir(folder), where=where, keys=keys)


def tell_missing(files: Iterable[Path]) -> None:
    """Logs a warning for each set of shards with one of `files`, if others are not on the disk.

    Files given by name may be a choice, and a pattern of the shell takes what is there.
    """
    sets = {
        (file.parent, match["split"], match["end"], match["n"])
        for file in files
        if (match := _NAME.fullmatch(file.name))
    }
    for folder, *key in sorted(sets):
        matches = filter(None, map(_NAME.fullmatch, os.listdir(folder)))
        numbers = {m["i"] for m in matches if [m["split"], m["end"], m["n"]] == key}
        if len(numbers) < int(key[2]):
            _log.warning(
                "%s has %d of the %d shards of %s; the others are not read. Fetch them, unless "
                "the choice is meant.",
                folder,
                len(numbers),
                int(key[2]),
                key[0],
            )


def check(
    names: Sequence[str], *, where: str, keys: Iterable[tuple[str, str]] | None = None
) -> None:
    """Raises ValueError unless each set of shards is whole.

    Args:
        names: Names of files, perhaps with folders.
        where: The directory, for messages.
        keys: Split and ending of the sets to check. Default: all.
    """
    sets: dict[tuple[str, str], Set] = {}
    for name in names:
        path = PurePosixPath(name)
        if key := _key(path.name):
            match = _NAME.fullmatch(path.name)
            assert match is not None
            key = (str(path.parent / key[0]), key[1])
            by_total = sets.setdefault(key, {})
            by_total.setdefault(int(match["n"]), {}).setdefault(int(match["i"]), []).append(name)
    wanted = None if keys is None else set(keys)
    for key, by_total in sorted(sets.items()):
        if wanted is None or key in wanted:
            _check_set(key[0], by_total, where)


def _key(name: str) -> tuple[str, str] | None:
    match = _NAME.fullmatch(name)
    return (match["split"], match["end"]) if match else None


def _check_set(split: str, by_total: Set, where: str) -> None:
    remedy = "Fetch the data set again, or give the files that you want as a list."
    if len(by_total) > 1:
        examples = [next(iter(shards.values()))[0] for _, shards in sorted(by_total.items())]
        raise ValueError(
            f"the shards of a split must be of one set: got {examples} in {where}. Delete those of "
            "the older set, or give the files that you want as a list."
        )
    ((total, shards),) = by_total.items()
    if twice := [names for names in shards.values() if len(names) > 1]:
        raise ValueError(
            f"a split must have each shard once: got {sorted(twice[0])} in {where}. Delete one of "
            "them, or give the files that you want as a list."
        )
    first = 1 if total in shards and 0 not in shards else 0
    absent = [i for i in range(first, total + first) if i not in shards]
    if absent or len(shards) != total:
        listed = [f"{i:05d}" for i in absent[:_LISTED]] + ["..."] * (len(absent) > _LISTED)
        raise ValueError(
            f"a split must have all of its shards: got {len(shards)} of {split}'s {total} in "
            f"{where}, without {', '.join(listed) or 'a plausible number'}. {remedy}"
        )
