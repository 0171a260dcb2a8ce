# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Dotted paths of parameters, abbreviated to `layers.{0..31}.attn.q.kernel`, and text tables."""

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


def dotted(path: tuple[Any, ...]) -> str:
    """Returns the dotted path of names and indices, such as `layers.7.attn.q.kernel`."""
    return ".".join(map(str, path))


def abbreviate(paths: Iterable[tuple[str, Hashable]]) -> dict[str, list[str]]:
    """Groups paths that differ only in their first index and share the key beside them.

    Takes pairs (path, key). Returns {abbreviation: paths}, in the order of the first paths.
    """
    alike: dict[tuple[str, str, Hashable], list[tuple[int, str]]] = {}
    for path, key in paths:
        indexed = re.fullmatch(r"(.*?\.)(\d+)(|\..*)", path)
        before, index, after = indexed.groups() if indexed else (path, "0", "")
        alike.setdefault((before, after, key), []).append((int(index), path))
    groups = {}
    for (before, after, _), group in alike.items():
        names = [path for _, path in group]
        span = _span([index for index, _ in group])
        groups[names[0] if len(names) == 1 else f"{before}{{{span}}}{after}"] = names
    return groups


def _span(indices: list[int]) -> str:
    """Returns `0..31`, `0..10..2` for a constant step, or the indices with commas."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    if indices != list(range(indices[0], indices[-1] + 1, step)):
        return ",".join(map(str, indices))
    return f"{indices[0]}..{indices[-1]}" + (f"..{step}" if step > 1 else "")


def aligned(lines: Sequence[tuple[str, ...]], *, numbers: int) -> str:
    """Returns a text table. The last `numbers` columns are aligned at the right.

    The first line has the titles of the columns. A line of another length is not aligned.
    """
    columns = len(lines[0])
    full = [line for line in lines if len(line) == columns]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    edges = [str.ljust] * (columns - numbers) + [str.rjust] * numbers
    text = []
    for line in lines:
        if len(line) == columns:
            line = [edge(cell, w) for edge, cell, w in zip(edges, line, widths, strict=True)]
        text.append("  ".join(line))
    return "\n".join(text)
