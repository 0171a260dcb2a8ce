# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a corpus from JSON lines with a byte-level BPE: ours, `datasets.map`, and the limit.

The text is the Python standard library's sources. `datasets` tokenizes the same records in batches
with the same tokenizer on as many processes, and writes its Arrow cache; the ids are compared
first. The limit is the tokenizer alone, with its texts in memory and its results thrown away.
"""

import functools
import itertools
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from dovetail_data import Pretrained, Text, jsonl, records, train_bpe, write
from measure import report, rounds

VOCAB, REPEATS, FILES = 8_000, 3, 1400


def prepare(directory: Path) -> tuple[Path, Pretrained]:
    """Writes shards of JSON lines, and trains a tokenizer on some of their text."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    read = (path.read_text(encoding="utf-8", errors="replace") for path in files)
    texts = list(itertools.islice(filter(None, read), FILES))  # ours leaves out empty ones
    for i in range(8):
        lines = [json.dumps({"text": text}) for text in texts[i::8]]
        (directory / f"{i}.jsonl").write_text("\n".join(lines))
    return directory, train_bpe(texts[:300], directory / "bpe", vocab_size=VOCAB)


def library(tokenizer: Pretrained) -> tokenizers.Tokenizer:
    """Runs the same tokenizer without anything of ours around it."""
    raw = tokenizers.Tokenizer.from_str(tokenizer.content)
    raw.encode_special_tokens = True
    return raw


def peer(directory: Path, tokenizer: Pretrained, scratch: Path, workers: int) -> Any:
    """Runs the code of a user of `datasets`, without any earlier run's cache."""
    import datasets  # not above: our spawned workers import this module, and need none of that

    datasets.disable_progress_bars()
    files = sorted(map(str, directory.glob("*.jsonl")))
    loaded = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(scratch), keep_in_memory=False
    )

    raw, before, after = library(tokenizer), [tokenizer.bos_id], [tokenizer.eos_id]

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = raw.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"input_ids": [before + encoding.ids + after for encoding in encoded]}

    return loaded.map(
        encode,
        batched=True,
        batch_size=100,
        num_proc=workers if workers > 1 else None,
        remove_columns=["text"],
        cache_file_name=str(scratch / "mapped.arrow"),
        load_from_cache_file=False,
    )


def measured(kind: str, workers: int, directory: Path) -> dict[str, float]:
    """Returns wall and CPU seconds, children included, of one case in a process of its own.

    The rest of one library in a process slows the other: encoding took half as long again after
    `datasets` had run.
    """
    program = [sys.executable, __file__, kind, str(workers), str(directory)]
    return json.loads(subprocess.check_output(program))


def run(kind: str, workers: int, directory: Path) -> None:
    """Runs in such a process: prepares, runs the case, and prints its times."""
    # One encoder per process, without threads of the tokenizer inside of it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Pretrained(directory / "bpe")
    texts = [record["text"] for record in records(jsonl(directory))] if kind == "limit" else []
    raw = library(tokenizer)
    calls: dict[str, Callable[[Path], object]] = {
        "ours": lambda to: write(jsonl(directory), to, encoder=Text(tokenizer), workers=workers),
        "datasets": lambda to: peer(directory, tokenizer, to, workers),
        "limit": lambda to: raw.encode_batch_fast(texts, add_special_tokens=False),
    }
    if kind == "datasets":
        import datasets  # noqa: F401  (its import is not what is compared)
    with tempfile.TemporaryDirectory() as scratch:
        before, begin = _cpu_s(), time.perf_counter()
        calls[kind](Path(scratch) / "out" if kind == "ours" else Path(scratch))
        spent = {"wall_s": time.perf_counter() - begin, "cpu_s": _cpu_s() - before}
    print(json.dumps(spent))


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def compare(directory: Path, tokenizer: Pretrained) -> int:
    """Compares the ids of both and returns their number."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        theirs = peer(directory, tokenizer, scratch, 1)
        ours = write(jsonl(directory), scratch / "ours", encoder=Text(tokenizer))
        for i in range(0, len(theirs), 97):
            np.testing.assert_array_equal(ours[i]["tokens"], theirs[i]["input_ids"])
        if len(ours) != len(theirs):
            raise SystemExit(f"the numbers of documents differ: {len(ours)} and {len(theirs)}")
        return ours.tokens


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory, tokenizer = prepare(Path(name))
        tokens = compare(directory, tokenizer)
        kinds = [("ours", 1), ("ours", 2), ("datasets", 1), ("datasets", 2), ("limit", 1)]
        kinds += [(f"{kind} again", n) for kind, n in kinds[2:]]
        cases = {
            (kind, n): functools.partial(measured, kind.split()[0], n, directory)
            for kind, n in kinds
        }
        results = rounds(cases, repeats=REPEATS)
    for kind, distribution, workers in (
        ("datasets", "datasets", 2),
        ("datasets", "datasets", 1),
        ("limit", "tokenizers", 1),
    ):
        for metric in ("wall_s", "cpu_s"):
            report(
                f"{tokens} ids, {workers} processes, against {kind}",
                metric=metric,
                unit="s",
                values=[repeat[metric] for repeat in results["ours", workers]],
                peer=distribution,
                peer_values=[repeat[metric] for repeat in results[kind, workers]],
                peer_again=[repeat[metric] for repeat in results[f"{kind} again", workers]],
            )


if __name__ == "__main__":
    if sys.argv[1:]:
        run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
