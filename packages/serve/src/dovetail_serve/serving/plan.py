# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`plan`: the batch sizes to run for a number of rows.

The next larger size is not always the cheapest choice: with sizes 1, 8 and 64, nine rows cost less
as 8 + 1 than as 64 on most devices, and the reverse holds where a call costs more than its rows.
So sizes are measured on this device, and a small dynamic program finds the cheapest sum.
"""

from collections.abc import Mapping

from dovetail_serve.serving.options import Padding


def plan(rows: int, costs: Mapping[int, float], padding: Padding) -> tuple[int, ...]:
    """Returns the batch sizes to run for `rows` rows, largest first. The last one is padded.

    Args:
        rows: Number of rows, from 1.
        costs: Seconds of a run by batch size, from `measure_costs`.
        padding: "min_cost" minimizes the summed cost, then the number of runs, then padding.
            "next" takes the largest size as often as it is filled, then the next size.

    Returns:
        Sizes with a sum of at least `rows`; without the last one, the sum is below `rows`.

    Example:

        >>> plan(9, {1: 1.0, 8: 2.0, 64: 9.0}, "min_cost")
        (8, 1)
        >>> plan(9, {1: 1.0, 8: 2.0, 64: 9.0}, "next")
        (64,)
    """
    if padding == "next":
        largest = max(costs)
        full, rest = divmod(rows, largest)
        last = (min(size for size in costs if size >= rest),) if rest else ()
        return (largest,) * full + last
    # best[n]: cost, number of runs and slots of the cheapest plan for n rows, and one size of it.
    best: list[tuple[float, int, int, int]] = [(0.0, 0, 0, 0)]
    for n in range(1, rows + 1):
        candidates = []
        for size, cost in costs.items():
            seconds, runs, slots, _ = best[max(0, n - size)]
            candidates.append((seconds + cost, runs + 1, slots + size, size))
        best.append(min(candidates))
    sizes, left = [], rows
    while left > 0:
        sizes.append(best[left][3])
        left -= sizes[-1]
    return tuple(sorted(sizes, reverse=True))
