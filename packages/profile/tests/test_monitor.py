# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of a loop within a budget, as a plain object and as a hook of a trainer."""

import contextlib
import logging
import time

import jax
import jax.numpy as jnp
import pytest

from dovetail_profile.monitor import Budget, Monitor
from dovetail_profile.profile import read

FRACTIONS = {f"profile/{name}_fraction" for name in ("compute", "input", "idle", "cost")}
COUNTS = {"profile/samples", "profile/skipped"}


class Sink:
    def __init__(self):
        self.lines = []

    def write(self, step, scalars):
        self.lines.append((step, dict(scalars)))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def work():
    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    f(x).block_until_ready()
    return lambda: f(x).block_until_ready()


def run(monitor, work, steps, start=0):
    for i in range(start, start + steps):
        monitor.step(i)
        work()


def fitted(monitor, work, steps):
    """The scalars by step, of a loop that calls hooks as dovetail_train does."""
    scalars = {}
    for step in range(steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            work()
        if (step + 1) % monitor.every == 0 and (values := monitor(None, None, step + 1)):
            scalars[step + 1] = values
    monitor.close()
    return scalars


@pytest.mark.parametrize("cost_s", [0.02, 0.1, 0.7])
def test_ten_thousand_steps_hold_the_budget(cost_s):
    process, thread, shares, samples = Clock(), Clock(), [], 0
    budget = Budget(0.01, process_s=process, thread_s=thread)
    for step in range(10_000):
        process.now += 0.01
        if step % 100 == 0 and budget.affords():
            for _ in range(3):  # start, stop and analysis
                with budget.charge():
                    process.now += cost_s / 3
                    thread.now += cost_s / 3
            budget.end()
            samples += 1
        shares.append(budget.fraction)
    assert budget.fraction == pytest.approx(samples * cost_s / process.now)
    # Only a first sample that is dearer than expected goes beyond the share, and it is paid back.
    assert max(shares) <= 0.01 * max(1, cost_s / 0.1) * (1 + 1e-9)
    assert shares[-1] <= 0.01
    assert samples == {0.02: 49, 0.1: 9, 0.7: 1}[cost_s]  # of 100 s, and what they cost


def test_a_budget_counts_a_sample_that_fails():
    process, thread = Clock(), Clock()
    budget = Budget(0.5, process_s=process, thread_s=thread)
    with contextlib.suppress(OSError), budget.charge():
        thread.now += 3.0
        raise OSError
    process.now = 12.0
    assert budget.fraction == 0.25
    budget.end()
    assert budget.fraction == 0.25
    assert budget.affords()  # 3 and 3 more of 12
    process.now = 11.9
    assert not budget.affords()


def test_a_loop_is_sampled_at_multiples(work, tmp_path):
    sink = Sink()
    monitor = Monitor(every=5, steps=2, budget=1.0, sink=sink, directory=tmp_path)
    monitor._budget.affords = lambda: True  # the time of the first steps is short
    run(monitor, work, steps=14, start=3)
    monitor.close()
    assert [step for step, _ in sink.lines] == [7, 12]  # another one is open at the end
    _, scalars = sink.lines[-1]
    assert scalars == monitor.scalars
    assert set(scalars) == {*FRACTIONS, *COUNTS, "profile/top_op_share"}
    assert all(0 <= scalars[name] <= 1 for name in FRACTIONS)
    assert scalars["profile/samples"] == len(sink.lines)
    assert read(tmp_path / "step5").steps().column("step") == [5, 6]


def test_a_trainer_calls_it_as_a_hook(work):
    monitor = Monitor(every=4, steps=2, budget=1.0)
    monitor._budget.affords = lambda: True
    scalars = fitted(monitor, work, steps=11)
    assert list(scalars) == [6, 10]
    assert set(scalars[6]) == {*FRACTIONS, *COUNTS, "profile/top_op_share"}
    assert monitor.every == 4


def test_without_room_nothing_is_traced(work):
    monitor = Monitor(every=4, steps=2, budget=1e-9)
    assert fitted(monitor, work, steps=20) == {}
    run(monitor, work, steps=20)
    assert monitor.scalars == {}


def test_another_capture_is_no_end_of_training(work, tmp_path, caplog):
    monitor = Monitor(every=4, steps=2, budget=1.0)
    monitor._budget.affords = lambda: True
    jax.profiler.start_trace(tmp_path)
    with caplog.at_level(logging.WARNING, logger="dovetail_profile"):
        run(monitor, work, steps=10)
    jax.profiler.stop_trace()
    assert monitor.scalars["profile/skipped"] == 2
    assert monitor.scalars["profile/samples"] == 0
    assert "no sample at step 4: " in caplog.text
    run(monitor, work, steps=10, start=10)
    monitor.close()
    assert monitor.scalars["profile/skipped"] == 2
    assert monitor.scalars["profile/samples"] == 2


def test_a_trace_that_another_one_stops_is_counted(work):
    monitor = Monitor(every=4, steps=2, budget=1.0)
    monitor._budget.affords = lambda: True
    run(monitor, work, steps=5)
    jax.profiler.stop_trace()
    run(monitor, work, steps=2, start=5)
    assert monitor.scalars["profile/skipped"] == 1
    monitor.close()


def test_closing_ends_a_sample(work, tmp_path):
    monitor = Monitor(every=4, steps=2, budget=1.0)
    monitor._budget.affords = lambda: True
    run(monitor, work, steps=5)
    monitor.close()
    monitor.close()
    jax.profiler.start_trace(tmp_path)  # none runs
    jax.profiler.stop_trace()
    assert monitor.scalars == {}


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"every": 3}, {"budget": 0.0}, {"budget": 1.5}, {"every": 0}]
)
def test_numbers_are_in_their_ranges(options):
    with pytest.raises(
        ValueError, match=r"steps must be at least 1.*got every=.*write for example"
    ):
        Monitor(**options)


@pytest.mark.thorough
def test_a_real_loop_holds_the_budget():
    x = jnp.ones((512, 512))
    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    monitor = Monitor(every=20, steps=3, budget=0.05)
    begun = time.process_time()
    for i in range(300):
        monitor.step(i)
        start = time.process_time()
        while time.process_time() - start < 0.01:
            f(x).block_until_ready()
    spent = time.process_time() - begun
    monitor.close()
    assert spent > 1
    assert monitor.scalars["profile/samples"] >= 1
    assert monitor._budget.fraction <= 0.05
    assert monitor.scalars["profile/compute_fraction"] > 0.2
