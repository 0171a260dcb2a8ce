# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Packed tokens per CPU-second from ArrayRecord: ours, Grain's packing, and the limits.

Each value is one epoch from opened files to batches in NumPy, CPU time of all threads, packing
included. All read the same shards in shuffled order, and give the same tokens and targets (compared
first), except the memory map: it has the ids in one flat file, cuts them wherever a row ends, and
has the least cost of any pipeline.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from corpora import VOCAB, drawn_corpus, lognormal_lengths

from dovetail_data import Corpus, batches, mix, pack
from measure import report, rounds

LENGTH, BATCH, DOCUMENTS = 2048, 8, 12_000
OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # ArrayRecord's own advice for random access
BINS = 128  # Grain leaves the number of open rows to its user; more fill better and cost more


def ours(directory: Path) -> Iterator[dict[str, np.ndarray]]:
    rows = pack(Corpus(directory), length=LENGTH, seed=0)
    yield from batches(rows, global_batch=BATCH, seed=0, epochs=1)


def mixed(directory: Path) -> Iterator[dict[str, np.ndarray]]:
    """Reads the same corpus as two sources of a mixture, for as many rows as one epoch has."""
    rows = pack(Corpus(directory), length=LENGTH, seed=0)
    it = batches(
        mix({"a": rows, "b": rows}, weights={"a": 0.7, "b": 0.3}), global_batch=BATCH, seed=0
    )
    yield from (next(it) for _ in range(len(rows) // BATCH))


def grains(directory: Path, options: grain.ReadOptions) -> Iterator[dict[str, np.ndarray]]:
    def pairs(record: bytes) -> dict[str, np.ndarray]:
        ids = np.frombuffer(record, "<u2").astype(np.int32)
        return {"tokens": ids[:-1], "targets": ids[1:]}

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, directory.glob("*.array_record"))))
    dataset = grain.MapDataset.source(source).shuffle(seed=0).map(pairs).to_iter_dataset(options)
    packed = grain.experimental.FirstFitPackIterDataset(
        dataset, length_struct={"tokens": LENGTH, "targets": LENGTH}, num_packing_bins=BINS
    )
    for batch in packed.batch(BATCH):
        segments = batch["tokens_segment_ids"]
        yield {
            "tokens": batch["tokens"],
            "targets": batch["targets"],
            "mask": (segments > 0).astype(np.float32),
            "segment_ids": segments,
            "positions": batch["tokens_positions"],
        }


def memory_map(path: Path) -> Iterator[dict[str, np.ndarray]]:
    flat = np.memmap(path, "<u2", mode="r")
    size = BATCH * LENGTH
    order = np.random.default_rng(0).permutation((len(flat) - 1) // size)
    mask = np.ones((BATCH, LENGTH), np.float32)
    segments = np.ones((BATCH, LENGTH), np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1))
    for i in order.tolist():
        ids = flat[i * size : (i + 1) * size + 1].astype(np.int32)
        yield {
            "tokens": ids[:-1].reshape(BATCH, LENGTH),
            "targets": ids[1:].reshape(BATCH, LENGTH),
            "mask": mask.copy(),
            "segment_ids": segments.copy(),
            "positions": positions.copy(),
        }


def records(directory: Path) -> Iterator[dict[str, np.ndarray]]:
    """Reads every record once, in batched random reads: the cost of ArrayRecord alone."""
    corpus = Corpus(directory)
    order = np.random.default_rng(0).permutation(len(corpus))
    readers = [
        ArrayRecordReader(str(path), OPTIONS, file_reader_buffer_size=4096)
        for path in sorted(directory.glob("*.array_record"))
    ]
    starts = np.cumsum([0, *(reader.num_records() for reader in readers)])
    for documents in np.array_split(order, len(order) // 32):
        shards = np.searchsorted(starts, documents, side="right") - 1
        for shard in np.unique(shards).tolist():
            places = documents[shards == shard] - starts[shard]
            for record in readers[shard].read(places.tolist()):
                yield {"mask": np.broadcast_to(np.float32(1), (len(record) // 2 - 1,))}


def rate(epoch: Callable[[], Iterable[dict[str, np.ndarray]]]) -> float:
    begin = time.process_time()
    tokens = sum(int(batch["mask"].sum()) for batch in epoch())
    return tokens / (time.process_time() - begin)


def digest(epoch: Iterable[dict[str, np.ndarray]]) -> tuple[int, int]:
    """Returns the number of (token, target), and a sum that hardly any other multiset has."""
    count, total = 0, 0
    for batch in epoch:
        counts = batch["mask"] > 0
        tokens, targets = (batch[name][counts].astype(np.uint64) for name in ("tokens", "targets"))
        count += len(tokens)
        mixed = (tokens * np.uint64(VOCAB) + targets) * np.uint64(0x9E3779B97F4A7C15)
        total += int((mixed ^ (mixed >> np.uint64(29))).sum())
    return count, total % 2**64


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        lengths = lognormal_lengths(DOCUMENTS, longest=LENGTH + 1)
        corpus = drawn_corpus(Path(scratch) / "c", lengths)
        directory, flat = corpus.directory, Path(scratch) / "flat"
        documents = corpus.read(np.arange(len(corpus)))
        flat.write_bytes(b"".join(document["tokens"].tobytes() for document in documents))
        threads = {"default": grain.ReadOptions(), "0 threads": grain.ReadOptions(num_threads=0)}
        expected = digest(ours(directory))
        for options in threads.values():
            got = digest(grains(directory, options))
            if got != expected:
                raise SystemExit(f"the pipelines give different pairs: {got} and {expected}")
        epochs = {
            "ours": lambda: ours(directory),
            "ours, mixed": lambda: mixed(directory),
            "memory map": lambda: memory_map(flat),
            "ArrayRecord reads": lambda: records(directory),
        }
        for name, options in threads.items():
            epochs[f"grain, {name}"] = lambda options=options: grains(directory, options)
        cases = {name: (lambda epoch=epoch: rate(epoch)) for name, epoch in epochs.items()}
        cases |= {f"{name} again": case for name, case in cases.items() if name != "ours"}
        rates = rounds(cases, repeats=5)
    report(
        f"a packed row of {LENGTH} slots, B={BATCH}, against ArrayRecord reads of its documents",
        metric="cpu_us",
        unit="us",
        values=[1e6 * LENGTH / rate for rate in rates["ours"]],
        peer="array-record",
        peer_values=[1e6 * LENGTH / rate for rate in rates["ArrayRecord reads"]],
        peer_again=[1e6 * LENGTH / rate for rate in rates["ArrayRecord reads again"]],
    )
    distributions = {
        "memory map": "numpy",
        "ArrayRecord reads": "array-record",
        "ours, mixed": "ours",
    }
    for peer in [name for name in epochs if name != "ours"]:
        report(
            f"S={LENGTH} B={BATCH} documents={DOCUMENTS} against {peer}",
            metric="packed_tokens_per_cpu_s",
            unit="tokens/s",
            values=rates["ours"],
            peer=distributions.get(peer, "grain"),
            peer_values=rates[peer],
            peer_again=rates[f"{peer} again"],
            pairs=expected[0],
        )


if __name__ == "__main__":
    main()
