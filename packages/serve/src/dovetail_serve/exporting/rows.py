# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Independence of rows, proved on the example before a function may serve joined requests.

A server joins rows of different requests in one batch and fills the rest with padding. A function
may take part only if no row's result depends on the other rows. Batch statistics, one quantization
scale for a whole tensor, a capacity of experts, a softmax over the wrong axis break that, and no
shape or type shows it.

For each number of rows, rows of the example are placed at the first position, at the last one and
in the first half. The other positions are filled with padding, then with other neighbours. The
program and the positions are the same, so the results must be equal to the bit.

Neighbours of integers have values of the example or 0, since others may be no valid indices. In one
more trial the row itself is 0 and its booleans are flipped, for an example of equal rows.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from dovetail_serve.exporting.caller import warn
from dovetail_serve.exporting.runner import Run, UnfinishedError

Arrays = Mapping[str, np.ndarray]

# The same neighbours each time, so that one function is not accepted now and refused later.
_SEED = 0
# Noise of this many standard deviations, and factor of large neighbours.
_NOISE, _LARGE = 3.0, 1e4
# Runs of equal inputs that bound the spread of a program that is not deterministic.
_REPEATS = 4
_PADDING = "padding of zeros"


def check_rows(run: Run, example: Arrays, *, batch_sizes: Sequence[int]) -> None:
    """Checks that neither padding nor neighbours change the result of a row.

    It runs the function about 20 times for each number of rows above 1.

    Args:
        run: The function, a `Runner`.
        example: Arrays by name, with two rows or more.
        batch_sizes: Numbers of rows, ascending.

    Raises:
        ValueError: A row changes with its neighbours, or a batch gives no result. The message names
            the output, the number of rows, the neighbours and the largest difference.

    Warns:
        UserWarning: Equal inputs give different bits, so the comparison allows their spread. Or an
            input of integers is 0 in the whole example.
    """
    sizes = [size for size in batch_sizes if size > 1]
    if sizes:
        _warn_of_zeros(example)
    for size in sizes:
        generator = np.random.default_rng(_SEED)
        spread: dict[str, float] | None = None
        for placement in _placements(size):
            real = _take(example, placement.rows % _count(example))
            padded = _filled(real, placement, _padding(real, size))
            reference = _results(run, padded, placement, kind=_PADDING)
            if spread is None:
                spread = _spread(run, padded, placement, reference)
            for kind, neighbours in _neighbours(example, real, size, generator):
                results = _results(run, _filled(real, placement, neighbours), placement, kind=kind)
                _compare(reference, results, spread, size=size, kind=kind)
        if not all(map(_is_inexact, example.values())):
            _check_another_row(run, example, spread or {}, size, generator)


def _check_another_row(
    run: Run,
    example: Arrays,
    spread: Mapping[str, float],
    size: int,
    generator: np.random.Generator,
) -> None:
    """Compares a row of zeros, its booleans flipped, beside padding and beside two neighbours.

    In an example of equal integers no neighbour is above the row. Above the row of zeros it is.
    """
    placement = _Placement(positions=np.array([0]), rows=np.array([0]))
    real = {name: _another(array[:1]) for name, array in example.items()}
    padded = _filled(real, placement, _padding(real, size))
    reference = _results(run, padded, placement, kind=_PADDING)
    for kind, neighbours in (_copies(real, size), _resampled(example, size, generator)):
        results = _results(run, _filled(real, placement, neighbours), placement, kind=kind)
        _compare(reference, results, spread, size=size, kind=kind)


def _another(array: np.ndarray) -> np.ndarray:
    if _is_inexact(array):
        return array
    return ~array if array.dtype == bool else np.zeros_like(array)


def _warn_of_zeros(example: Arrays) -> None:
    if zeros := [
        name
        for name, array in example.items()
        if jax.numpy.issubdtype(array.dtype, np.integer) and not array.any()
    ]:
        warn(
            "the example must have different values of each input of integers, got 0 alone for "
            f"{', '.join(map(repr, zeros))}, so nothing shows that rows do not depend on each "
            "other's other values; give rows with the values that requests have"
        )


@dataclasses.dataclass(frozen=True)
class _Placement:
    """Positions of real rows in a batch, and their rows of the example."""

    positions: np.ndarray
    rows: np.ndarray


def _placements(size: int) -> list[_Placement]:
    placements = [
        _Placement(positions=np.array([0]), rows=np.array([0])),
        _Placement(positions=np.array([size - 1]), rows=np.array([1])),
    ]
    if size > 3:
        half = np.arange(size // 2)
        placements.append(_Placement(positions=half, rows=half))
    return placements


def _neighbours(
    example: Arrays, real: Arrays, size: int, generator: np.random.Generator
) -> Iterator[tuple[str, Arrays]]:
    """Yields batches of neighbours, each with its description."""
    yield _copies(real, size)
    kind, resampled = _resampled(example, size, generator)
    yield kind, resampled
    changes = _CHANGES if any(map(_is_inexact, example.values())) else _INTEGER_CHANGES
    for kind, change in changes.items():
        yield (
            kind,
            {
                name: change(array, example[name], generator)
                if _is_inexact(array)
                else _exchanged(array, example[name], generator)
                for name, array in resampled.items()
            },
        )


def _copies(real: Arrays, size: int) -> tuple[str, dict[str, np.ndarray]]:
    """Equal rows choose one expert and exceed its capacity."""
    return "copies of the row", _take(real, np.zeros(size, int))


def _resampled(
    example: Arrays, size: int, generator: np.random.Generator
) -> tuple[str, dict[str, np.ndarray]]:
    rows = generator.integers(0, _count(example), size)
    return "other rows of the example", _take(example, rows)


def _noisy(array: np.ndarray, example: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    values = _wide(example)
    finite = values[np.isfinite(values)]
    scale = _NOISE * (1.0 + (finite.std() if finite.size else 0.0))
    return _narrow(_wide(array) + scale * generator.normal(size=array.shape), array.dtype)


def _large(array: np.ndarray, example: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return _narrow(_LARGE * _wide(array), array.dtype)


def _nan(array: np.ndarray, example: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return _narrow(np.full(array.shape, np.nan), array.dtype)


def _exchanged(
    array: np.ndarray, example: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Returns flipped booleans, or integers of the example and 0, so that indices stay valid."""
    if array.dtype == bool:
        return ~array
    # Each value once: an example of ones has zeros in half of its neighbours.
    values = np.unique(np.append(example.reshape(-1), np.zeros(1, example.dtype)))
    return values[generator.integers(0, values.size, array.shape)]


_Change = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
_CHANGES: dict[str, _Change] = {
    "rows with noise": _noisy,
    "rows of large values": _large,
    "rows of NaN": _nan,
}
_INTEGER_CHANGES: dict[str, _Change] = {"rows of exchanged values": _exchanged}


def _padding(real: Arrays, size: int) -> Arrays:
    return {name: np.zeros((size, *array.shape[1:]), array.dtype) for name, array in real.items()}


def _filled(real: Arrays, placement: _Placement, neighbours: Arrays) -> dict[str, np.ndarray]:
    batch = {name: array.copy() for name, array in neighbours.items()}
    for name, array in batch.items():
        array[placement.positions] = real[name]
    return batch


def _take(arrays: Arrays, rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in arrays.items()}


def _count(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))


def _at(outputs: Arrays, placement: _Placement) -> dict[str, np.ndarray]:
    return _take(outputs, placement.positions)


def _results(run: Run, batch: Arrays, placement: _Placement, *, kind: str) -> dict[str, np.ndarray]:
    """Returns the results of the real rows. Raises ValueError if the batch never ends."""
    try:
        return _at(run(batch), placement)
    except UnfinishedError as error:
        raise ValueError(
            "a row's result must not wait for the other rows of its batch, got none within "
            f"{error.waited_s:.0f} s in a batch of {_count(batch)} beside {kind}; end the loops of "
            "fn after a number of steps (a counter in the condition of jax.lax.while_loop): the "
            "run takes a core until this process ends"
        ) from None


def _spread(run: Run, batch: Arrays, placement: _Placement, first: Arrays) -> dict[str, float]:
    """Returns twice the largest difference of equal runs by output, 0 for equal bits. Warns."""
    again = _at(run(batch), placement)
    if all(_difference(first[name], again[name]) == 0 for name in first):
        return dict.fromkeys(first, 0.0)
    runs = [again, *(_at(run(batch), placement) for _ in range(_REPEATS))]
    spread = {
        name: 2 * max(_difference(first[name], each[name]) for each in runs) for name in first
    }
    warn(
        f"equal inputs give different results, by up to {max(spread.values()) / 2:.3g}; rows are "
        "compared within twice this difference, where a deterministic function is compared to the "
        "bit"
    )
    return spread


def _compare(
    reference: Arrays, results: Arrays, spread: Mapping[str, float], *, size: int, kind: str
) -> None:
    for name, expected in reference.items():
        difference = _difference(expected, results[name])
        if difference > spread[name] or difference == np.inf:
            raise ValueError(
                "a row's result must not depend on the other rows of its batch, got a difference "
                f"of {difference:.3g} in the output {name!r} in a batch of {size} beside {kind}; "
                "write batch_sizes=(1,), or remove the cause from fn: batch statistics, a "
                "quantization scale of the whole tensor, a capacity of experts, a softmax or mean "
                "over the batch axis"
            )


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the largest difference, 0 for equal results; infinite if one of two values is NaN."""
    if first.tobytes() == second.tobytes():
        return 0.0
    a, b = _wide(first), _wide(second)
    with np.errstate(invalid="ignore"):
        distance = np.where((np.isnan(a) & np.isnan(b)) | (a == b), 0.0, np.abs(a - b))
    largest = float(np.max(np.nan_to_num(distance, nan=np.inf, posinf=np.inf)))
    # Integers above 2**53 may differ and be equal in float64.
    return largest if _is_inexact(first) else max(largest, 1.0)


def _is_inexact(array: np.ndarray) -> bool:
    return bool(jax.numpy.issubdtype(array.dtype, np.inexact))


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)
