# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Throughput of `verify` on a bundle of 1 GiB, against hashlib on all cores over the same bytes.

The peer hashes the same 64 arrays, from memory, in a pool of as many threads as there are cores.
The bundle's files are in the page cache. The limit is SHA-256 itself: the peer does nothing else.
`verify` reads its files, for a map of one that is cut short ends the process: the copy out of the
page cache is the difference.
"""

import hashlib
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dovetail_serve import Tensor, export, verify
from measure import cost, report, rounds

REPEATS = 7
ARRAYS, SHAPE = 64, (2048, 2048)  # 16 MiB each in float32


def main() -> None:
    random = np.random.default_rng(0)
    weights = {
        f"layers.{i}.kernel": random.integers(0, 2**32, size=SHAPE, dtype="uint32")
        for i in range(ARRAYS)
    }
    size = sum(array.nbytes for array in weights.values())

    def digests() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda array: hashlib.sha256(array.data).digest(), weights.values()))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "1")
        export(
            lambda p, *, x: {"y": x + p["layers.0.kernel"][0, 0]},
            weights,
            inputs={"x": Tensor(("batch",), "uint32")},
            example={"x": np.array([3, 5], "uint32")},
            platforms=["cpu"],
            batch_sizes=(1,),
        ).save(path)
        cases = {
            "ours": lambda: cost(lambda: verify(path)),
            "hashlib": lambda: cost(digests),
            "again": lambda: cost(digests),
        }
        costs = rounds(cases, repeats=REPEATS)
    speed = {name: [size / 2**30 / c.wall_s for c in found] for name, found in costs.items()}
    report(
        "verify a bundle of 1 GiB",
        metric="throughput",
        unit="GiB/s",
        values=speed["ours"],
        peer="hashlib, a thread for each core",
        peer_values=speed["hashlib"],
        peer_again=speed["again"],
        arrays=ARRAYS,
        cpu_ratio=sum(c.cpu_s for c in costs["ours"]) / sum(c.cpu_s for c in costs["hashlib"]),
    )


if __name__ == "__main__":
    main()
