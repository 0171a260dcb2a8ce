# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fraction of a run spent waiting for batches. A step takes twice the host's time per batch.

The step is a sleep: an accelerator works and the host is free. `wait_fraction` comes from the
iterator's own stats; the peer's, Grain's, is measured around its `next` in the same way.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from corpora import drawn_corpus, lognormal_lengths

from dovetail_data import Corpus, Rows, batches, pack, to_device
from measure import report, rounds

LENGTH, BATCH, STEPS, DOCUMENTS = 2048, 64, 150, 12_000


def batch_s(rows: Rows) -> float:
    """Returns the host's time for one batch, alone; the median of many."""
    it = batches(rows, global_batch=BATCH, seed=0)
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        next(it)
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def waited(it: Iterator[Any], step_s: float) -> float:
    """Returns wait_s / total_s over STEPS steps.

    The first batch opens files and counts in neither.
    """
    next(it)
    begin, wait_s = time.perf_counter(), 0.0
    for _ in range(STEPS):
        time.sleep(step_s)
        asked = time.perf_counter()
        next(it)
        wait_s += time.perf_counter() - asked
    return wait_s / (time.perf_counter() - begin)


def ours(rows: Rows, step_s: float, **options: int) -> float:
    it = batches(rows, global_batch=BATCH, seed=0, **options)
    waited(it, step_s)
    it.close()
    return it.stats().wait_fraction


def on_device(rows: Rows, step_s: float) -> float:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    it = to_device(batches(rows, global_batch=BATCH, seed=0), device)
    waited(it, step_s)
    it.close()
    return it.stats().wait_fraction


def grains(directory: Path, step_s: float) -> float:
    def pairs(record: bytes) -> dict[str, np.ndarray]:
        ids = np.frombuffer(record, "<u2").astype(np.int32)
        return {"tokens": ids[:-1], "targets": ids[1:]}

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, directory.glob("*.array_record"))))
    dataset = grain.MapDataset.source(source).shuffle(seed=0).repeat().map(pairs).to_iter_dataset()
    packed = grain.experimental.FirstFitPackIterDataset(
        dataset, length_struct={"tokens": LENGTH, "targets": LENGTH}, num_packing_bins=128
    )
    return waited(iter(packed.batch(BATCH)), step_s)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        lengths = lognormal_lengths(DOCUMENTS, longest=LENGTH + 1)
        directory = drawn_corpus(Path(scratch) / "c", lengths).directory
        rows = pack(Corpus(directory), length=LENGTH, seed=0)
        step_s = 2 * batch_s(rows)
        cases: dict[str, Callable[[], float]] = {
            "no reading ahead": lambda: ours(rows, step_s),
            "1 thread": lambda: ours(rows, step_s, threads=1),
            "1 process": lambda: ours(rows, step_s, workers=1),
            "to_device": lambda: on_device(rows, step_s),
            "grain": lambda: grains(directory, step_s),
            "grain again": lambda: grains(directory, step_s),
        }
        results = rounds(cases, repeats=5)
    for name in ("no reading ahead", "1 thread", "1 process", "to_device"):
        report(
            f"{name}, S={LENGTH} B={BATCH}, a step of {step_s * 1e3:.2f} ms",
            metric="wait_fraction",
            unit="of the time",
            values=results[name],
            peer="grain",
            peer_values=results["grain"],
            peer_again=results["grain again"],
        )


if __name__ == "__main__":
    main()
