# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fill of packed rows and cost of packing: ours against Grain's packers.

All pack the same lognormal documents. Grain packs while it reads, so its CPU seconds include moving
the tokens; ours are for the index alone, made once. Grain's user chooses the number of open rows:
more of them fill rows better and cost more.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grain
import numpy as np
from corpora import drawn_corpus, lognormal_lengths

from dovetail_data import Corpus, pack
from measure import report, rounds

LENGTH, DOCUMENTS = 2048, 50_000
BINS = 128


def ours(directory: Path, method: str) -> dict[str, float]:
    corpus = Corpus(directory)
    begin = time.process_time()
    rows = pack(corpus, length=LENGTH, method=method, seed=0)
    return {"fill": rows.fill, "cpu_s": time.process_time() - begin}


def grains(directory: Path, packer: Callable[..., grain.IterDataset]) -> dict[str, float]:
    pairs = Corpus(directory).lengths - 1
    source = [np.zeros(n, np.int32) for n in pairs.tolist()]
    dataset = grain.MapDataset.source(source).shuffle(seed=0).map(lambda ids: {"tokens": ids})
    begin = time.process_time()
    packed = packer(
        dataset.to_iter_dataset(grain.ReadOptions(num_threads=0)),
        length_struct={"tokens": LENGTH},
        num_packing_bins=BINS,
    )
    rows = sum(1 for _ in packed)
    return {
        "fill": float(pairs.sum() / (rows * LENGTH)),
        "cpu_s": time.process_time() - begin,
    }


def main() -> None:
    packers = {
        "grain best-fit": grain.experimental.BestFitPackIterDataset,
        "grain first-fit": grain.experimental.FirstFitPackIterDataset,
    }
    with tempfile.TemporaryDirectory() as scratch:
        lengths = lognormal_lengths(DOCUMENTS, longest=LENGTH + 1)
        directory = drawn_corpus(Path(scratch) / "c", lengths).directory
        cases = {m: (lambda m=m: ours(directory, m)) for m in ("best_fit", "first_fit", "concat")}
        for name, packer in packers.items():
            for suffix in ("", " again"):
                cases[name + suffix] = lambda packer=packer: grains(directory, packer)
        results = rounds(cases, repeats=3)
    for method in ("best_fit", "first_fit", "concat"):
        for name in packers:
            for metric, unit in (("fill", "of slots"), ("cpu_s", "s")):
                report(
                    f"{method}, S={LENGTH} documents={DOCUMENTS} against {name}, {BINS} rows open",
                    metric=metric,
                    unit=unit,
                    values=[repeat[metric] for repeat in results[method]],
                    peer="grain",
                    peer_values=[repeat[metric] for repeat in results[name]],
                    peer_again=[repeat[metric] for repeat in results[f"{name} again"]],
                )


if __name__ == "__main__":
    main()
