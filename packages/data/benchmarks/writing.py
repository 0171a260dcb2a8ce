# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a corpus from JSON lines with a byte-level BPE: ours, `datasets.map`, and the limit.

The text is the Python standard library's sources. `datasets` tokenizes the same records in batches
with the same tokenizer on as many processes, and writes its Arrow cache; the ids are compared
first. The limit is the tokenizer alone, its texts in memory, its results thrown away.
"""

import itertools
import json
import os
import resource
import shutil
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

VOCAB, REPEATS, FILES = 8_000, 3, 1800


def prepare(directory: Path) -> tuple[Path, Pretrained]:
    """Shards of JSON lines, and a tokenizer trained on some of their text."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    read = (path.read_text(encoding="utf-8", errors="replace") for path in files)
    texts = list(itertools.islice(filter(None, read), FILES))  # ours leaves out empty ones
    for i in range(8):
        lines = [json.dumps({"text": text}) for text in texts[i::8]]
        (directory / f"{i}.jsonl").write_text("\n".join(lines))
    return directory, train_bpe(texts[:300], directory / "bpe", vocab_size=VOCAB)


def library(tokenizer: Pretrained) -> tokenizers.Tokenizer:
    """The same tokenizer without anything of ours around it."""
    raw = tokenizers.Tokenizer.from_str(tokenizer.content)
    raw.encode_special_tokens = True
    return raw


def peer(directory: Path, tokenizer: Pretrained, scratch: Path, workers: int) -> Any:
    """What a user of `datasets` writes; nothing of it comes from an earlier run's cache."""
    import datasets  # not above: our spawned workers import this module, and need none of that

    datasets.disable_progress_bars()
    files = sorted(map(str, directory.glob("*.jsonl")))
    loaded = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(scratch), keep_in_memory=False
    )

    raw, before, after = library(tokenizer), [tokenizer.bos_id], [tokenizer.eos_id]

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = raw.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"input_ids": [before + one.ids + after for one in encoded]}

    return loaded.map(
        encode,
        batched=True,
        batch_size=100,
        num_proc=workers if workers > 1 else None,
        remove_columns=["text"],
        cache_file_name=str(scratch / "mapped.arrow"),
        load_from_cache_file=False,
    )


def measured(call: Callable[[Path], object]) -> dict[str, float]:
    """Wall and CPU seconds (children included) of a call that fills a fresh directory."""
    scratch = Path(tempfile.mkdtemp())
    try:
        before, begin = _cpu_s(), time.perf_counter()
        call(scratch)
        return {"wall_s": time.perf_counter() - begin, "cpu_s": _cpu_s() - before}
    finally:
        shutil.rmtree(scratch)


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(directory: Path, tokenizer: Pretrained) -> int:
    """Both give the same ids; returns how many."""
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
    # Both run one encoder per process, without threads of the tokenizer inside of it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as name:
        directory, tokenizer = prepare(Path(name))
        tokens = compare(directory, tokenizer)
        texts = [record["text"] for record in records(jsonl(directory))]

        def ours(workers: int) -> Callable[[Path], object]:
            encoder = Text(tokenizer)
            return lambda to: write(jsonl(directory), to, encoder=encoder, workers=workers)

        def theirs(workers: int) -> Callable[[Path], object]:
            return lambda to: peer(directory, tokenizer, to, workers)

        calls = {f"ours {n}": ours(n) for n in (1, 2)}
        calls |= {f"datasets {n}": theirs(n) for n in (1, 2)}
        calls |= {f"datasets {n} again": theirs(n) for n in (1, 2)}
        raw = library(tokenizer)
        for name in ("limit", "limit again"):
            calls[name] = lambda to: raw.encode_batch_fast(texts, add_special_tokens=False)
        cases = {name: (lambda call=call: measured(call)) for name, call in calls.items()}
        found = rounds(cases, repeats=REPEATS)
    for workers in (1, 2):
        for metric in ("wall_s", "cpu_s"):
            peers = [(f"datasets {workers}", "datasets")]
            peers += [("limit", "tokenizers")] if workers == 1 else []
            for peer_name, distribution in peers:
                report(
                    f"{tokens} ids, {workers} processes, against {peer_name}",
                    metric=metric,
                    unit="s",
                    values=[one[metric] for one in found[f"ours {workers}"]],
                    peer=distribution,
                    peer_values=[one[metric] for one in found[peer_name]],
                    peer_again=[one[metric] for one in found[f"{peer_name} again"]],
                )


if __name__ == "__main__":
    main()
