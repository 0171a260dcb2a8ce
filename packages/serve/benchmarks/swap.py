# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Latency of 100 clients while versions replace one another, against the same load without swaps.

Clients and server share one process and one event loop. Each client sends a row of its own every
50 ms and compares the answer with the function of the version that the answer names. A swap copies
a bundle into the repository, and the server verifies, compiles and warms it up meanwhile. A lost
or wrong answer ends the script with an error.
"""

import asyncio
import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dovetail_serve import Batching, Server
from dovetail_serve.testing import save_mlp
from measure import report, rounds

CLIENTS, PERIOD_S = 100, 0.05
ROUND_S, SWAPS, REPEATS = 3.0, 6, 5
WIDTHS, BATCH_SIZES = (64, 256, 10), (1, 8, 32)


class Load:
    """The clients, the repository, and the numbers of answers."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repo"
        self._exported = [folder / "even", folder / "odd"]
        functions = [
            save_mlp(path, widths=WIDTHS, seed=seed, batch_sizes=BATCH_SIZES)
            for seed, path in enumerate(self._exported)
        ]
        self._rows = np.random.default_rng(0).normal(size=(CLIENTS, 1, WIDTHS[0])).astype("float32")
        self._expected = [
            function(self._rows[:, 0])[:, None].astype("float32") for function in functions
        ]
        self._versions = itertools.count(1)
        self.answers = 0

    def put(self) -> None:
        """Puts the next version into the repository; the two functions take turns."""
        version = next(self._versions)
        partial = self.root / "mlp" / f".{version}.partial"
        shutil.copytree(self._exported[version % 2], partial)
        partial.rename(self.root / "mlp" / str(version))

    async def round(self, server: Server, swaps: int) -> list[float]:
        """Returns the seconds of each answer of one round."""
        seconds: list[float] = []
        end = time.perf_counter() + ROUND_S
        clients = [self._client(i, server, seconds, end) for i in range(CLIENTS)]
        await asyncio.gather(self._swap(server, swaps), *clients)
        self.answers += len(seconds)
        return seconds

    async def _swap(self, server: Server, swaps: int) -> None:
        for _ in range(swaps):
            start = time.perf_counter()
            self.put()
            await server.load("mlp")
            await asyncio.sleep(max(0.0, ROUND_S / swaps - (time.perf_counter() - start)))

    async def _client(self, i: int, server: Server, seconds: list[float], end: float) -> None:
        # Clients start one after another, so that they do not all send at the same time.
        await asyncio.sleep(PERIOD_S * i / CLIENTS)
        while (start := time.perf_counter()) < end:
            answer = await server.infer("mlp", {"x": self._rows[i]})
            seconds.append(time.perf_counter() - start)
            expected = self._expected[int(answer.version) % 2][i]
            # float32 products of 64 and 256 terms, against float64.
            np.testing.assert_allclose(answer.outputs["y"], expected, atol=1e-4)
            await asyncio.sleep(max(0.0, PERIOD_S - (time.perf_counter() - start)))


def percentile_s(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100)[percent - 1]


async def start(load: Load) -> Server:
    load.put()
    server = Server(load.root, batching=Batching(queue=CLIENTS))
    await server.start()
    return server


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        load = Load(Path(folder))
        server = loop.run(start(load))
        cases = {"swaps": SWAPS, "none": 0, "again": 0}
        results = rounds(
            {name: lambda n=n: loop.run(load.round(server, n)) for name, n in cases.items()},
            repeats=REPEATS,
        )
        counts = server.statistics("mlp")
        loop.run(server.stop())
    assert counts.successes == load.answers, (counts, load.answers)
    assert not counts.failures, counts.failures
    for percent in (50, 99):
        values = {
            name: [percentile_s(seconds, percent) * 1e3 for seconds in each]
            for name, each in results.items()
        }
        report(
            f"{CLIENTS} clients, a request each every {PERIOD_S * 1e3:.0f} ms, "
            f"{SWAPS} swaps in {ROUND_S:.0f} s",
            metric=f"p{percent}_ms",
            unit="ms",
            values=values["swaps"],
            peer="the same without swaps",
            peer_values=values["none"],
            peer_again=values["again"],
            answers=load.answers,
            lost=0,
            swaps=counts.loads - 1,
        )


if __name__ == "__main__":
    main()
