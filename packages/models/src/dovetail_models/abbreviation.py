# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paths that differ in an index alone, written as one: `layers.{0..31}.attn.q.kernel`."""

import re
from collections.abc import Hashable, Iterable


def abbreviate(paths: Iterable[tuple[str, Hashable]]) -> dict[str, list[str]]:
    """{abbreviation: the paths that it stands for}, in the order of their first.

    Given are paths, each with what must be equal for two to be written as one. Paths are alike that
    differ in the first of their indices.
    """
    alike: dict[tuple[str, str, Hashable], list[tuple[int, str]]] = {}
    for path, key in paths:
        indexed = re.fullmatch(r"(.*?\.)(\d+)(|\..*)", path)
        before, index, after = indexed.groups() if indexed else (path, "0", "")
        alike.setdefault((before, after, key), []).append((int(index), path))
    found = {}
    for (before, after, _), group in alike.items():
        names = [path for _, path in group]
        span = _span([index for index, _ in group])
        found[names[0] if len(names) == 1 else f"{before}{{{span}}}{after}"] = names
    return found


def _span(indices: list[int]) -> str:
    """`0..31`, or `0..10..2` for every second, or each index where there is no such step."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    if indices != list(range(indices[0], indices[-1] + 1, step)):
        return ",".join(map(str, indices))
    return f"{indices[0]}..{indices[-1]}" + (f"..{step}" if step > 1 else "")
