# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a Monitor costs: while it waits, against an annotation of a step; and with its samples.

The bars are one annotation, and 0.01 of the CPU time of steps of 10 ms. A loop with the monitor is
compared with the same loop without it, twice; so the difference holds the cost of tracing on the
threads of the device too, which the monitor itself cannot see. `accounted` is what it tells.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dovetail_profile import Monitor
from measure import report, rounds

CALLS, REPEATS = 100_000, 7
STEPS, STEP_S, LOOPS = 3000, 0.01, 3  # 30 CPU seconds: room for samples of 0.3


def idle() -> None:
    monitor = Monitor(every=10 * CALLS)
    monitor.step(0)

    def step_ns() -> float:
        start = time.perf_counter_ns()
        for i in range(CALLS):
            monitor.step(i)
        return (time.perf_counter_ns() - start) / CALLS

    def annotation_ns() -> float:
        start = time.perf_counter_ns()
        for i in range(CALLS):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                pass
        return (time.perf_counter_ns() - start) / CALLS

    cases = {"step": step_ns, "peer": annotation_ns, "again": annotation_ns}
    costs = rounds(cases, repeats=REPEATS)
    report(
        "Monitor.step between samples",
        metric="wall_ns",
        unit="ns",
        values=costs["step"],
        peer="StepTraceAnnotation while nothing traces",
        peer_values=costs["peer"],
        peer_again=costs["again"],
    )


def loop_s(work: Callable[[], object], monitor: Monitor | None) -> float:
    """Returns CPU seconds of a loop of STEPS steps."""
    begun = time.process_time()
    for i in range(STEPS):
        if monitor is not None:
            monitor.step(i)
        work()
    return time.process_time() - begun


def sampling() -> None:
    x = jnp.ones((512, 512))
    product = jax.jit(lambda x: jnp.tanh(x @ x))
    product(x).block_until_ready()
    begun = time.process_time()
    for _ in range(20):
        product(x).block_until_ready()
    products = max(1, round(STEP_S / ((time.process_time() - begun) / 20)))

    def work() -> None:
        for _ in range(products):
            product(x).block_until_ready()

    accounted, samples = [], []

    def sampled() -> float:
        monitor = Monitor(every=100, budget=0.01)
        seconds = loop_s(work, monitor)
        monitor.close()
        accounted.append(monitor.scalars["profile/cost_fraction"])
        samples.append(monitor.scalars["profile/samples"])
        return seconds

    def plain() -> float:
        return loop_s(work, None)

    costs = rounds({"sampled": sampled, "peer": plain, "again": plain}, repeats=LOOPS)
    report(
        f"{STEPS:,} steps of about 10 ms, budget 0.01",
        metric="cpu_s",
        unit="s",
        values=costs["sampled"],
        peer="the same loop without a monitor",
        peer_values=costs["peer"],
        peer_again=costs["again"],
        accounted=max(accounted),
        samples=min(samples),
        products_a_step=products,
    )


if __name__ == "__main__":
    idle()
    sampling()
