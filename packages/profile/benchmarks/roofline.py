# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The share of the roof that a large product and a large copy reach in a trace.

The peaks are measured first, in the same process. Both programs should land on the roof: at 1
within the spread of the measurement, which the line holds.
"""

import tempfile

import jax
import jax.numpy as jnp

from dovetail_profile import Peaks, measure_peaks, read
from measure import report

SIDE, STREAM, RUNS = 2048, 1 << 26, 5


def rows(name: str, peaks: Peaks) -> list[float]:
    """Returns the fraction of each of several traces."""
    if name == "copy":
        x = jnp.ones(STREAM)
        run = jax.jit(lambda x: x * 0.5, donate_argnums=0)
    else:
        x = jnp.eye(SIDE, dtype=name)
        run = jax.jit(jnp.matmul)
    fractions = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                x = jax.block_until_ready(run(x) if name == "copy" else run(x, x))
            (largest, *_) = read(folder).roofline(peaks)
            fractions.append(largest.fraction or 0.0)
    return fractions[1:]  # the first trace has the compilation


def main() -> None:
    peaks = measure_peaks()
    spreads = {name: round(spread, 3) for name, spread in peaks.spreads.items()}
    for name in (*peaks.flops_per_s, "copy"):
        case = "a copy of 256 MiB" if name == "copy" else f"a product of {SIDE} in {name}"
        rate = peaks.flops_per_s.get(name, peaks.bytes_per_s)
        report(
            case, metric="fraction", unit="1", values=rows(name, peaks), peak=rate, spreads=spreads
        )


if __name__ == "__main__":
    main()
