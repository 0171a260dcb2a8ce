# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A corpus of random ids for the benchmarks of reading: documents of usual lengths, no text."""

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dovetail_data import Corpus, Document, ids, jsonl, write

VOCAB = 32_000


class Drawn:
    """An encoder that turns a record [seed, n] into n ids drawn by the seed."""

    tokenizer = None
    fingerprint = "drawn"
    layout = MappingProxyType({"tokens": ids(VOCAB)})
    manifest = MappingProxyType({"encoder": "drawn"})

    def __call__(self, records):
        return [
            Document(arrays={"tokens": np.random.default_rng(seed).integers(0, VOCAB, n, np.int32)})
            for seed, n in (record["drawn"] for record in records)
        ]


def lognormal_lengths(count: int, *, longest: int, seed: int = 0) -> np.ndarray:
    """Returns lengths in ids with median 400, at most `longest`: Grain cannot cut a document."""
    lengths = np.random.default_rng(seed).lognormal(6, 1, count).astype(int)
    return np.clip(lengths, 2, longest)


def drawn_corpus(directory: Path, lengths: np.ndarray, *, seed: int = 0) -> Corpus:
    """Writes a corpus of those lengths to `directory`."""
    directory.mkdir(parents=True)
    lines = [json.dumps({"drawn": [seed + i, int(n)]}) for i, n in enumerate(lengths)]
    (directory / "in.jsonl").write_text("\n".join(lines))
    return write(jsonl(directory / "in.jsonl"), directory / "corpus", encoder=Drawn())
