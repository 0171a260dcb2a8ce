# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The costs of batch sizes are measured, and other load on the machine is not taken for a cost."""

import math

import numpy as np
import pytest

from dovetail_serve import Tensor, export, load, measure_costs
from dovetail_serve.loading.costs import least_seconds
from dovetail_serve.testing import save_mlp


class Machine:
    """A clock, and calls that take the durations of a list; the last one repeats."""

    def __init__(self):
        self.now, self.counts = 0.0, {}

    def call(self, size, durations):
        def run():
            count = self.counts[size] = self.counts.get(size, 0) + 1
            self.now += durations[min(count, len(durations)) - 1]

        return run


def test_a_program_that_is_interrupted_at_first_is_measured_again():
    machine = Machine()
    # In 1/1024 s: the size 1 takes 64 while others run, and 1 afterwards.
    durations = {1: [64.0] * 40 + [1.0], 8: [3.0], 64: [9.0, 8.0, 9.0]}
    calls = {
        size: machine.call(size, [x / 1024 for x in values]) for size, values in durations.items()
    }
    costs = least_seconds(calls, clock=lambda: machine.now)
    # Powers of two: their sums and differences are exact.
    assert costs == {1: 1 / 1024, 8: 3 / 1024, 64: 8 / 1024}


def test_slow_programs_run_a_few_times_and_orders_in_doubt_stay_as_measured():
    machine = Machine()
    calls = {1: machine.call(1, [4.0]), 8: machine.call(8, [2.0])}
    assert least_seconds(calls, clock=lambda: machine.now) == {1: 4.0, 8: 2.0}
    assert machine.counts == {1: 1, 8: 1}


@pytest.mark.thorough
def test_each_batch_size_is_measured(tmp_path):
    save_mlp(tmp_path / "1", batch_sizes=(1, 3, 8))
    costs = measure_costs(load(tmp_path / "1"))
    assert list(costs) == [1, 3, 8]
    assert all(0 < cost < math.inf for cost in costs.values())


@pytest.mark.thorough
def test_a_larger_product_costs_more(tmp_path):
    def fn(params, *, x):
        for _ in range(8):
            x = x @ params["w"]
        return {"y": x}

    w = np.random.default_rng(0).normal(size=(128, 128)).astype("float32")
    bundle = export(
        fn,
        {"w": w / 128},
        inputs={"x": Tensor(("batch", 128), "float32")},
        example={"x": w[:3]},
        batch_sizes=(1, 1024),
        platforms=("cpu",),
    )
    bundle.save(tmp_path / "1")
    costs = measure_costs(load(tmp_path / "1"))
    # 1,024 times the products, 8 * 2 * 128**2 * 1024 = 268 million operations.
    assert costs[1024] > 2 * costs[1]


def test_a_model_without_a_batch_axis_is_one_row(unbatched):
    assert list(measure_costs(load(unbatched[0]))) == [1]
