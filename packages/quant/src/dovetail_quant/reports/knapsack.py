# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The exact choice of one option per item, with least cost under a limit of bytes.

A multiplier is a price per byte. At each price every item takes its best option, and one price
nearly fills the limit (Shoham and Gersho, Efficient bit allocation for an arbitrary set of
quantizers, IEEE Trans. ASSP 36, 1988). The unfilled rest is the gap to the optimum, so the price
gives only a bound. Items are then decided one after the other: all combinations of bytes and cost
that no other dominates are kept, except those that can no longer beat the best known.
"""

from collections.abc import Sequence

import numpy as np

_HALVINGS = 60  # of the price: the digits of a float64


def knapsack(
    sizes: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], *, limit: int
) -> list[int]:
    """Returns the option of each item with the least total cost and a total size up to `limit`.

    Args:
        sizes: Bytes of the options of each item; at least 0.
        costs: Costs of the options of each item; at least 0.
        limit: Limit of the total size, in bytes.

    Raises:
        ValueError: Even the smallest options exceed the limit; the error says by how much.
    """
    least = sum(min(options) for options in sizes)
    if least > limit:
        raise ValueError(
            f"a limit must hold the smallest options, got limit={limit} where they take {least}; "
            f"add {least - limit} bytes, or smaller options"
        )
    items = [
        (np.asarray(s, np.int64), np.asarray(c, np.float64))
        for s, c in zip(sizes, costs, strict=True)
    ]
    price = _price(items, limit)
    return _exact(items, limit, price=price, best=_filled(items, limit, price))


def _at(items: Sequence[tuple[np.ndarray, np.ndarray]], price: float) -> list[int]:
    """Returns each item's best option at a price; of equal ones the smallest."""
    return [int(np.lexsort((s, c + price * s))[0]) for s, c in items]


def _size(items: Sequence[tuple[np.ndarray, np.ndarray]], options: Sequence[int]) -> int:
    return sum(int(s[o]) for (s, _), o in zip(items, options, strict=True))


def _price(items: Sequence[tuple[np.ndarray, np.ndarray]], limit: int) -> float:
    """Returns the least price, to a float's precision, at which the choice fits the limit."""
    if _size(items, _at(items, 0.0)) <= limit:
        return 0.0
    low, high = 0.0, 1e-300 + 2 * max(float(c.max()) for _, c in items)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _size(items, _at(items, middle)) <= limit:
            high = middle
        else:
            low = middle
    return high


def _filled(items: Sequence[tuple[np.ndarray, np.ndarray]], limit: int, price: float) -> float:
    """Returns the cost of a choice within the limit: the one at the price, filled up best first."""
    options = _at(items, price)
    room = limit - _size(items, options)
    while True:
        gains = [
            ((c[o] - c[j]) / (s[j] - s[o]), i, j)
            for i, ((s, c), o) in enumerate(zip(items, options, strict=True))
            for j in range(len(s))
            if c[j] < c[o] and 0 < s[j] - s[o] <= room
        ]
        if not gains:
            return float(sum(c[o] for (_, c), o in zip(items, options, strict=True)))
        _, i, j = max(gains)
        room -= int(items[i][0][j] - items[i][0][options[i]])
        options[i] = j


def _exact(
    items: Sequence[tuple[np.ndarray, np.ndarray]], limit: int, *, price: float, best: float
) -> list[int]:
    """Returns the optimum, item after item, each size with its least cost, pruned by `best`."""
    # What the items from i on cost at least at the price, the limit's own worth not yet taken off.
    least = [0.0, *np.cumsum([float((c + price * s).min()) for s, c in reversed(items)])][::-1]
    used, cost = np.zeros(1, np.int64), np.zeros(1)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    slack = 1e-12 * (1 + abs(best))  # sums in another order differ by rounding
    for i, (s, c) in enumerate(items):
        sums, costs = (used[:, None] + s).reshape(-1), (cost[:, None] + c).reshape(-1)
        bound = costs + least[i + 1] - price * (limit - sums)
        possible = np.flatnonzero((sums <= limit) & (bound <= best + slack))
        order = possible[np.lexsort((costs[possible], sums[possible]))]
        lowest = np.minimum.accumulate(costs[order])
        kept = order[np.concatenate([[True], costs[order][1:] < lowest[:-1]])]
        steps.append((kept // len(s), kept % len(s)))
        used, cost = sums[kept], costs[kept]
    at = int(np.argmin(cost))
    options = []
    for parents, picked in reversed(steps):
        options.append(int(picked[at]))
        at = int(parents[at])
    return options[::-1]
