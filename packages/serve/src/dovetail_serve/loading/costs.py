# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`measure_costs`: the seconds that each batch size of a model takes on this device."""

import functools
import time
from collections.abc import Callable, Mapping

import numpy as np

from dovetail_serve.loading.model import Model

# Other load on the machine only adds time, so the least of several runs is the cost; a median of
# them chose 8 rows over 1 on a busy machine. All sizes are measured in turn, so that a slow moment
# meets all of them. A size that still seems dearer than a larger one is run more often: a wrong
# order made single requests pay for 8 rows for as long as the model was served, 7 times the latency
# at a load of 16 on two cores. The time limit keeps the warm-up of slow models short. It counts
# least times, or one long interruption would end the measurement of a short program.
RUNS = 15
MORE_RUNS = 60
RUNS_S = 0.1


def measure_costs(model: Model) -> dict[int, float]:
    """Runs the program of each batch size on rows of the example, and returns what it costs here.

    Args:
        model: The loaded model. Its host functions do not run. Programs that are not compiled yet
            are, and then run once before they are measured.

    Returns:
        Least seconds of one run by batch size, in ascending order; a model without a batch axis has
        the one size 1. `propose_sizes` takes them.
    """
    inputs, _ = model.golden()
    calls: dict[int, Callable[[], object]] = {}
    for size in model.batch_sizes or (1,):
        rows = {name: value[np.arange(size) % len(value)] for name, value in inputs.items()}
        call = functools.partial(model.execute, rows, size)
        if not model.batch_sizes:
            call = functools.partial(model.execute, inputs, None)
        model.compile(size if model.batch_sizes else None)
        call()
        calls[size] = call
    return least_seconds(calls)


def least_seconds(
    calls: Mapping[int, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Returns the least duration of each call, by rounds over all of them.

    Args:
        calls: Calls by batch size.
        clock: Returns the time in seconds.
    """

    def elapsed(call: Callable[[], object]) -> float:
        start = clock()
        call()
        return clock() - start

    least = {size: elapsed(call) for size, call in calls.items()}
    for count in range(1, RUNS + MORE_RUNS):
        sizes, limit_s = list(calls), RUNS_S
        if count >= RUNS:
            sizes, limit_s = _doubtful(least), RUNS_S * (1 + MORE_RUNS / RUNS)
        for size in sizes:
            # At most what a larger size takes, however long the runs of this one were so far.
            expected_s = min(cost for other, cost in least.items() if other >= size)
            if count * expected_s < limit_s:
                least[size] = min(least[size], elapsed(calls[size]))
    return least


def _doubtful(seconds: Mapping[int, float]) -> list[int]:
    """Returns the sizes with a higher measured cost than a larger one."""
    return [
        size
        for size, cost in seconds.items()
        if any(cost > other for larger, other in seconds.items() if larger > size)
    ]
