# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Trees for treemaps: amounts by path."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from dovetail_profile.page.sheet import number, text

_SMALLEST = 1 / 2000  # of the whole: an area of 20 x 20 pixels


@dataclasses.dataclass
class _Node:
    label: str
    total: float = 0.0
    known: float = 0.0  # the part of the total whose fraction is known
    reached: float = 0.0  # the sum of known amounts, each times its fraction
    children: "dict[str, _Node]" = dataclasses.field(default_factory=dict)

    def add(self, amount: float, fraction: float | None) -> None:
        self.total += amount
        if fraction is not None:
            self.known += amount
            self.reached += amount * fraction


def tree(
    leaves: Iterable[tuple[Sequence[str], float, float | None]],
    *,
    title: str,
    unit: str,
    joint: str = ".",
) -> dict[str, Any]:
    """Returns the picture of a treemap as JSON values: nodes with parents and amounts of their own.

    A node below 1/2000 of the whole is no area of its own but part of its parent.

    Args:
        leaves: A path, its own amount, and its fraction of the roof, if known. The fraction of a
            node is the mean of those below it, weighted by amount.
        title: Title of the picture.
        unit: Unit of the amounts, as in `sheet`.
        joint: Text between the names of a chain: nodes without branches are one area.
    """
    root = _Node("all")
    for path, amount, fraction in leaves:
        node = root
        node.add(amount, fraction)
        for name in path:
            node = node.children.setdefault(name, _Node(name))
            node.add(amount, fraction)
    labels: list[str] = []
    parents: list[int] = []
    values: list[float | int | None] = []
    fractions: list[float | int | None] = []
    waiting = [(root, -1)]
    while waiting:
        node, parent = waiting.pop()
        label = node.label
        while len(node.children) == 1 and parent >= 0:  # a chain is one area
            (child,) = node.children.values()
            if child.total < node.total:
                break
            node, label = child, f"{label}{joint}{child.label}"
        kept = [c for c in node.children.values() if c.total >= root.total * _SMALLEST > 0]
        place = len(labels)
        labels.append(text(label))
        parents.append(parent)
        values.append(number(max(0.0, node.total - sum(child.total for child in kept))))
        fractions.append(number(node.reached / node.known) if node.known else None)
        waiting += [(child, place) for child in kept]
    shares = {"labels": labels, "parents": parents, "values": values}
    return {"kind": "tree", "title": title, "unit": unit, **shares, "fractions": fractions}
