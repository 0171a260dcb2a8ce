# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of writing one large document, for each byte of its text.

The file is generated: one text, or one line of JSON. Each case runs in a process of its own, less
its memory after the imports. `--before DIR` measures the package in another source folder as the
peer.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import report

CASES = (("text", "bytes", 200), ("jsonl", "bytes", 200), ("text", "trained", 20))  # megabytes
_WORDS = ["lorem", "ipsum", "dolor", "sit", "amet", "the", "of", "consectetur", "\n", "naïve"]


def generate(path: Path, size: int) -> None:
    """Writes about `size` bytes: a text, or one line with it if the suffix says so."""
    rng = random.Random(0)
    block = " ".join(rng.choices(_WORDS, k=100_000))
    shown = block if path.suffix == ".txt" else json.dumps(block)[1:-1]
    opens, closes = ("", "") if path.suffix == ".txt" else ('{"text": "', '"}\n')
    with open(path, "w") as file:
        file.write(opens)
        for _ in range(size // len(block.encode()) + 1):
            file.write(shown)
        file.write(closes)


def run(kind: str, tokenizer: str, folder: Path) -> None:
    """Writes the corpus in this process, and prints the peak in bytes."""
    from dovetail_data import Bytes, Pretrained, Text, jsonl, text, write

    source = {"text": text, "jsonl": jsonl}[kind]
    encoder = Text(Bytes() if tokenizer == "bytes" else Pretrained(folder / "bpe"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    file = folder / ("x.txt" if kind == "text" else "x.jsonl")
    with tempfile.TemporaryDirectory(dir=folder) as out:
        write(source(file), Path(out) / "c", encoder=encoder)
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def measured(kind: str, tokenizer: str, folder: Path, package: Path | None) -> float:
    program = [sys.executable, __file__, "--run", kind, tokenizer, str(folder)]
    environment = dict(os.environ)
    if package is not None:
        environment["PYTHONPATH"] = f"{package}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    return float(subprocess.check_output(program, env=environment))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--run", nargs=3)
    args = parser.parse_args()
    if args.run:
        kind, tokenizer, folder = args.run
        run(kind, tokenizer, Path(folder))
        return
    from dovetail_data import train_bpe

    for kind, tokenizer, megabytes in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = folder / ("x.txt" if kind == "text" else "x.jsonl")
            generate(file, megabytes * 10**6)
            if tokenizer == "trained":
                train_bpe([" ".join(_WORDS)] * 50, folder / "bpe", vocab_size=400)
            size = file.stat().st_size
            ours = measured(kind, tokenizer, folder, None) / size
            before = args.before and measured(kind, tokenizer, folder, args.before) / size
            report(
                f"one document of {megabytes} MB, {kind}, tokenizer {tokenizer}",
                metric="peak memory",
                unit="bytes for each byte",
                values=[ours],
                peer="the package before" if before else None,
                peer_values=[before] if before else None,
            )


if __name__ == "__main__":
    main()
