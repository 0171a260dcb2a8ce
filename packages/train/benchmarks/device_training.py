# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A Llama trained on this device in bfloat16, with the operations of dovetail-kernels and without.

`steps` is the time of a step alone. The run of `train` is `Trainer.fit`, as a user calls it: its
loss must fall, and its rate is the median of the steps after the first ten. The comparison is of
blocks of steps, in rounds, at `peer_rows` rows: the model's own attention holds all logits.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax

from device_timing import peaks
from dovetail_kernels import attention, linear_cross_entropy
from dovetail_models import Config, abstract, flops, init, llama, size
from dovetail_train import Precision, Trainer, estimate, lm_loss
from measure import cost, report, rounds

SETTLED, BLOCK, REPEATS = 10, 5, 5
KERNELS = {"attention": attention, "cross_entropy": linear_cross_entropy}


def batch(config: Config, rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Arithmetic progressions modulo 97, which a model learns within a few steps."""
    rng = np.random.default_rng(seed)
    start, step = rng.integers(0, 97, (rows, 1)), rng.integers(1, 4, (rows, 1))
    ids = ((start + step * np.arange(length + 1)) % min(97, config.vocab_size)).astype(np.int32)
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "mask": np.ones((rows, length), np.float32),
    }


def trainer(
    config: Config, rows: int, length: int, *, mesh: Any = None, **operations: Any
) -> Trainer:
    """AdamW and bfloat16; `operations` of the loss are those of `lm_loss`."""
    return Trainer(
        optax.adamw(1e-3, b2=0.95, weight_decay=0.1),
        lm_loss(**operations),
        mesh=mesh,
        precision=Precision(compute="bfloat16"),
        flops=flops(config, tokens=rows * length, length=length),
    )


class _Kept:
    """Keeps the scalars of every step."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        del step
        self.steps.append(dict(scalars))


def train(sizes: dict[str, int], rows: int, peer_rows: int, length: int, steps: int) -> None:
    """Prints the rate of a run, and its ratio to that of the same trainer without kernels."""
    config = llama(**sizes, kv_heads=sizes["heads"], tie=True)
    kept = _Kept()
    batches = (batch(config, rows, length, seed) for seed in itertools.count())
    trainer(config, rows, length, **KERNELS).fit(
        init(config, seed=0), batches, steps=steps, sinks=[kept]
    )
    losses = [scalars["loss"] for scalars in kept.steps if "loss" in scalars]
    if not (all(map(math.isfinite, losses)) and losses[-1] < 0.8 * losses[0]):
        raise RuntimeError(f"the loss must fall, got {losses[0]} to {losses[-1]}")
    settled = [scalars for scalars in kept.steps if "step_time_s" in scalars][SETTLED:]
    shares = [scalars["mfu"] for scalars in settled if "mfu" in scalars]
    seconds = [scalars["step_time_s"] for scalars in settled]
    model = f"Llama of {size(config) / 1e6:.3g} million"
    report(
        f"train {steps} steps, {model}, {rows}x{length}, bfloat16",
        metric="wall_s",
        unit="s/step",
        values=seconds,
        tokens_per_s=rows * length / statistics.median(seconds),
        mfu=statistics.median(shares) if shares else None,
        losses=[losses[0], losses[-1]],
        **_estimated(config, rows, length),
    )
    _against_plain(config, peer_rows, length)


def steps(sizes: dict[str, int], rows: int, length: int) -> None:
    """Prints the seconds of a step, in blocks of `BLOCK`, and its share of the device's peak."""
    config, given = llama(**sizes, tie=True), batch(llama(**sizes, tie=True), rows, length)
    timed = trainer(config, rows, length, **KERNELS)
    candidate = [timed, timed.init(init(config, seed=0))]
    run = functools.partial(cost, functools.partial(_steps, candidate, given, BLOCK))
    seconds = [one.wall_s / BLOCK for one in rounds({"step": run}, repeats=REPEATS)["step"]]
    model, step_s = flops(config, tokens=rows * length, length=length), statistics.median(seconds)
    peak, _ = peaks("bfloat16")
    report(
        f"train step, Llama of {size(config) / 1e6:.4g} million, {rows}x{length}, bfloat16",
        metric="wall_s",
        unit="s/step",
        values=seconds,
        tokens_per_s=rows * length / step_s,
        mfu=None if peak is None else model / step_s / peak,
    )


def _estimated(config: Config, rows: int, length: int) -> dict[str, Any]:
    """The estimate of the step for this device, beside the model's FLOPs and the peak of memory.

    Counted FLOPs include the diagonal of attention, and lack opaque calls.
    """
    planned, model = trainer(config, rows, length, **KERNELS), abstract(config)
    given, device = batch(config, rows, length), jax.devices()[0]
    counted = planned.program(model, given).flops()
    needs = estimate(planned, model, given, device=device.device_kind)
    stats = device.memory_stats() or {}  # none on a CPU
    return {
        "counted_flops": counted.model / flops(config, tokens=rows * length, length=length),
        "opaque": dict(counted.opaque),
        "estimated_bytes": needs.total_bytes,
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "least_s": needs.seconds,
    }


def _against_plain(config: Config, rows: int, length: int) -> None:
    given, candidates = batch(config, rows, length), {}
    for name, operations in (("ours", KERNELS), ("plain", {}), ("again", {})):
        one = trainer(config, rows, length, **operations)
        candidates[name] = [one, one.init(init(config, seed=0))]
    first = {name: _steps(candidate, given, 1) for name, candidate in candidates.items()}
    # bfloat16 in other orders of summation.
    np.testing.assert_allclose(first["ours"], first["plain"], rtol=2e-2)
    calls = {
        name: functools.partial(cost, functools.partial(_steps, candidate, given, BLOCK))
        for name, candidate in candidates.items()
    }
    found = rounds(calls, repeats=REPEATS)
    seconds = {name: [c.wall_s / BLOCK for c in costs] for name, costs in found.items()}
    report(
        f"train step with dovetail-kernels, {rows}x{length}, bfloat16",
        metric="wall_s",
        unit="s/step",
        values=seconds["ours"],
        peer="the same step without",
        peer_values=seconds["plain"],
        peer_again=seconds["again"],
    )


def _steps(candidate: list[Any], given: dict[str, np.ndarray], count: int) -> float:
    """The loss of the last of `count` steps; the candidate's state is that after them."""
    one, _ = candidate
    for _ in range(count):
        candidate[1], metrics = one.step(candidate[1], given)
    jax.block_until_ready(candidate[1])
    return float(metrics.scalars["loss"])
