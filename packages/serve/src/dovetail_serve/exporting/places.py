# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Independence of a row's result from its place in the batch and from the size of the batch.

Random numbers drawn by one key for the whole batch, `arange` over the batch axis and arithmetic
with the number of rows pass every comparison of a row with itself at the same place. So

1. rows of the example move on by one place, which takes every row to its neighbour's place;
2. rows of the example are computed in batches of each size.

Results are equal within the tolerance of the self test, or rounding explains the difference.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from dovetail_serve.bundle.golden import Comparison, compare
from dovetail_serve.bundle.rounding import Arrays, explained, is_inexact
from dovetail_serve.exporting.runner import Run, Runner

# Rows that are compared between sizes. Size 1 has a run for each of them.
_ROWS = 4


def check_places(
    runner: Runner, example: Arrays, *, batch_sizes: Sequence[int], any_size: bool
) -> None:
    """Checks that a row has one result at each place and in a batch of each size.

    Args:
        runner: The function.
        example: Arrays by name, with two rows or more if a batch has several.
        batch_sizes: Numbers of rows, ascending.
        any_size: Whether there is a program for any number of rows. If `batch_sizes` has one
            number, a second one is then compared with it.

    Raises:
        ValueError: A result differs by more than rounding. The message names the output, the
            sizes and the difference.
    """
    sizes = list(batch_sizes)
    if any_size and len(sizes) == 1:
        sizes.append(sizes[0] + 1)
    for size in sizes:
        if size > 1:
            _check_order(runner, example, size)
        if size != sizes[0]:
            _check_size(runner, _first(example, _ROWS), sizes[0], size)


def _check_order(runner: Runner, example: Arrays, size: int) -> None:
    """Raises ValueError if rows that move on by one place have other results."""
    batch = _take(example, np.arange(size))
    moved = _take(batch, np.arange(size) - 1)

    def in_order(run: Run) -> Arrays:
        return run(batch)

    def moved_back(run: Run) -> Arrays:
        return _take(run(moved), np.arange(size) + 1)

    if difference := _difference(runner, example, in_order, moved_back):
        raise ValueError(
            "a row's result must not depend on its place in the batch, got a difference of "
            f"{difference} between places of a batch of {size}; take what tells rows apart as an "
            "input, such as a random key or a position for each row, in place of one key or an "
            f"arange for the whole batch, {_untried(runner, example)}or write batch_sizes=(1,)"
        )


def _check_size(runner: Runner, example: Arrays, first: int, size: int) -> None:
    """Raises ValueError if rows have other results in batches of another size."""

    def in_first(run: Run) -> Arrays:
        return _in_batches(run, example, first)

    def in_other(run: Run) -> Arrays:
        return _in_batches(run, example, size)

    if difference := _difference(runner, example, in_first, in_other):
        raise ValueError(
            "a row's result must not depend on the number of rows in its batch, got a difference "
            f"of {difference} between batches of {first} and of {size}; compute without the size "
            "of the batch axis, such as x.shape[0], and without random numbers for the whole "
            f"batch, {_untried(runner, example)}or write batch_sizes=(1,)"
        )


def _difference(
    runner: Runner,
    example: Arrays,
    first: Callable[[Run], Arrays],
    second: Callable[[Run], Arrays],
) -> str:
    """Returns the difference of the first output that differs by more than rounding, in words.

    Args:
        runner: The function.
        example: Arrays by name.
        first: Returns results of rows, computed in one way.
        second: Returns results of the same rows, computed in another way.
    """
    results = first(runner)

    def compared(others: Arrays) -> Mapping[str, Comparison]:
        return _compare(runner, others, results)

    def nudged(seed: int) -> Arrays:
        # In one expression, which frees a copy of the weights before the next is made.
        return first(runner.nudged(seed=seed))

    others = second(runner)
    moving = nudged if runner.is_nudged(example) else None
    for name, comparison in explained(compared, others, moving).items():
        if not comparison.passed:
            return f"{comparison.difference:.3g} in the output {name!r}"
    return ""


def _untried(runner: Runner, example: Arrays) -> str:
    """Returns advice where rounding of captured weights could be the cause and was not tried."""
    if runner.rounding is None or (runner.is_nudged(example) and not runner.captures):
        return ""
    return (
        "pass weights that fn captures in params, in 16 bits or more, so that rounding can be told "
        "from dependence, "
    )


def _compare(runner: Runner, results: Arrays, stored: Arrays) -> Mapping[str, Comparison]:
    """Compares outputs as the self test does, at the function's coarsest precision."""
    return compare(
        _widened(results),
        _widened(stored),
        platform=runner.platform,
        stored_platform=runner.platform,
        rounding=runner.rounding,
    ).outputs


def _widened(arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns outputs of 8 bits as float32: the self test allows two neighbours, a quarter."""
    return {
        name: array.astype(np.float32)
        if is_inexact(array) and jax.numpy.finfo(array.dtype).bits < 16
        else array
        for name, array in arrays.items()
    }


def _in_batches(run: Run, example: Arrays, size: int) -> Arrays:
    """Returns the results of the example's rows, in batches of `size` rows."""
    count = _count(example)
    batches = [
        run(_take(example, np.arange(start, start + size))) for start in range(0, count, size)
    ]
    return {
        name: np.concatenate([outputs[name] for outputs in batches])[:count] for name in batches[0]
    }


def _take(arrays: Arrays, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows by number; after the last row follows the first."""
    return {name: array[rows % len(array)] for name, array in arrays.items()}


def _first(arrays: Arrays, rows: int) -> dict[str, np.ndarray]:
    return {name: array[:rows] for name, array in arrays.items()}


def _count(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))
