# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`propose_sizes`: the cheapest batch sizes for the batches that a model has run."""

from collections.abc import Mapping

_SHOWN = "propose_sizes({1: 900, 7: 100}, {1: 0.001, 8: 0.004}, count=2)"


def propose_sizes(
    histogram: Mapping[int, int], costs: Mapping[int, float], *, count: int
) -> tuple[int, ...]:
    """Returns the batch sizes with the smallest total cost, each batch padded to the next size.

    The choice is optimal: for each size as the largest, dynamic programming extends the best
    choices of fewer sizes. Time grows with the square of the number of candidates.

    Args:
        histogram: Number of batches by rows, from 1, such as `Statistics.batches`.
        costs: Seconds of one run by candidate size, such as `measure_costs`. The largest size must
            hold the largest batch.
        count: Largest number of sizes to return.

    Returns:
        Sizes in ascending order, for `export(batch_sizes=...)`. Fewer if more do not help.

    Raises:
        ValueError: An argument is empty or out of range.
    """
    if count < 1:
        raise ValueError(f"count must be 1 or more, got count={count}; write {_SHOWN}")
    if not histogram or min(histogram) < 1 or min(histogram.values()) < 0:
        raise ValueError(
            f"histogram must have numbers of batches by rows from 1, got histogram={histogram}; "
            f"write {_SHOWN}"
        )
    if not costs or min(costs) < 1 or max(costs) < max(histogram):
        raise ValueError(
            f"costs must have a size for the largest batch, {max(histogram)} rows, got "
            f"sizes {sorted(costs)}; measure a larger size too"
        )
    # Total cost, and its sizes, of the batches up to the last of these sizes.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    complete = []
    for _ in range(min(count, len(costs))):
        best = {
            size: min(
                (total + _batches(histogram, after, size) * costs[size], (*sizes, size))
                for after, (total, sizes) in best.items()
                if after < size
            )
            for size in sorted(costs)
            if any(after < size for after in best)
        }
        complete += [choice for size, choice in best.items() if size >= max(histogram)]
    return min(complete, key=lambda choice: (choice[0], len(choice[1]), choice[1]))[1]


def _batches(histogram: Mapping[int, int], after: int, size: int) -> int:
    """Returns the number of batches of more than `after` rows and at most `size`."""
    return sum(number for rows, number in histogram.items() if after < rows <= size)
