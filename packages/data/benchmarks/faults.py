# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Flips bits of every file that `write` and `pack` leave, and kills `write`; counts the outcomes.

A trial flips one bit of one file, reads everything through the public interface, compares it with
the undamaged corpus, and mends the file. The flip is `named` if an error names the file, or if the
damaged documents are listed with it and all others are equal. It is `harmless` if everything is
equal and the bit lies between the records of a shard, or is the last newline of a ledger. Anything
else is `silent`: other values, or an error of another kind. `verify` must name the file of every
flip in a corpus.

A kill is a SIGKILL at a random moment of `write`, which is then called again. The files must be
those of an undisturbed run.

`--part 0.02` makes fewer trials, `--table RESULTS` prints the page of the documentation.
"""

import argparse
import base64
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_data import (
    Bytes,
    Chat,
    Corpus,
    DamageError,
    Image,
    Preference,
    Prompt,
    Template,
    Text,
    jsonl,
    pack,
    train_bpe,
    verify,
    write,
)
from dovetail_data.pixels import encode_png
from dovetail_data.writing import workers as _workers
from measure import report

FLIPS, KILLS = 1000, 200  # of all formats
_CHUNK_BYTES = 2000  # of input: many chunks and shards in a small corpus
_SHARD_BYTES = 4000
_TEMPLATE = "{% for m in messages %}{{ m.role + ':' + m.content }}{{ eos_token }}{% endfor %}"


def texts(rng: random.Random, count: int) -> list[str]:
    words = ["lorem", "ipsum", "día", "日本", "\n", "dolor"]
    return [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(count)]


def records(rng: random.Random, kind: str, count: int) -> list[dict[str, Any]]:
    """Returns records for the encoder of that name."""
    said = texts(rng, 2 * count)
    answers = zip(said[:count], said[count:], strict=True)
    if kind == "chat":
        roles = ("user", "assistant")
        chats = (
            [{"role": r, "content": c} for r, c in zip(roles, of, strict=True)] for of in answers
        )
        return [{"messages": chat} for chat in chats]
    if kind == "preference":
        return [{"prompt": "a", "chosen": f"{x}!", "rejected": f"{y}?"} for x, y in answers]
    if kind == "prompt":
        return [{"prompt": x, "answer": y} for x, y in answers]
    return [{"text": text} for text in said[:count]]


def images(folder: Path, rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Returns records that name pictures in `folder`."""
    for i in range(count):
        pixels = np.random.default_rng(rng.randrange(100)).integers(0, 255, (5, 4, 3), np.uint8)
        (folder / f"{i}.png").write_bytes(encode_png(pixels))
    paths = [str(folder / f"{i}.png") for i in range(count)]
    return [{"image": {"bytes": None, "path": path}, "label": i} for i, path in enumerate(paths)]


def written(folder: Path, kind: str, *, count: int = 40) -> Corpus:
    """Writes a corpus of that kind, with one record left out as corrupt."""
    rng = random.Random(kind)
    folder.mkdir()
    given = images(folder, rng, count) if kind == "image" else records(rng, kind, count)
    lines = [json.dumps(record) for record in given]
    (folder / "in.jsonl").write_text("\n".join([*lines, "{"]))
    encoders: dict[str, Callable[[], Any]] = {
        "text": lambda: Text(Bytes()),
        "text, trained tokenizer": lambda: Text(
            train_bpe(texts(rng, 200), folder / "bpe", vocab_size=400)
        ),
        "chat": lambda: Chat(Bytes(), template=Template(_TEMPLATE, eos="<|eos|>")),
        "preference": lambda: Preference(Bytes()),
        "prompt": lambda: Prompt(Bytes()),
        "image": lambda: Image(),
    }
    source = jsonl(folder / "in.jsonl")
    return write(
        source,
        folder / "c",
        encoder=encoders[kind](),
        shard_bytes=_SHARD_BYTES,
        max_corrupt=1,
    )


CORPORA = ("text", "text, trained tokenizer", "chat", "preference", "prompt", "image")


def facts(corpus: Corpus) -> dict[str, Any]:
    """Returns everything about a corpus but its documents."""
    return {
        "fingerprint": corpus.fingerprint,
        "counts": (len(corpus), corpus.tokens, corpus.text_bytes, corpus.dropped),
        "corrupt": [dataclasses.astuple(bad) for bad in corpus.corrupt],
        "manifest": corpus.manifest,
        "layout": dict(corpus.codec.layout),
        "lengths": corpus.lengths.tolist(),
        "sources": [corpus.source(i) for i in range(len(corpus))],
        "tokenizer": corpus.manifest.get("tokenizer") and corpus.tokenizer.fingerprint,
    }


def plain(document: Mapping[str, np.ndarray] | None) -> Any:
    return document and {name: array.tolist() for name, array in document.items()}


class Format:
    """The files of one kind and the way to read them.

    Args:
        files: The files to damage.
        read: Reads everything. Returns the values, and the files of damaged documents.
        checked: Whether `verify` covers the files.
    """

    def __init__(
        self, files: list[Path], read: Callable[[], tuple[Any, set[str]]], *, checked: Path | None
    ) -> None:
        self.files = files
        self._read = read
        self._checked = checked
        self._expected, damaged = read()
        assert not damaged

    def outcome(self, path: Path) -> str:
        """Reads after `path` was damaged."""
        if self._checked is not None and not self._named(path, lambda: verify(self._checked)):
            return "silent"
        try:
            values, damaged = self._read()
        except DamageError as error:
            return "named" if str(path) in str(error) else "silent"
        except Exception:  # a raw error names nothing
            return "silent"
        if damaged - {str(path)} or not _agree(values, self._expected):
            return "silent"
        if damaged:
            return "named"
        # Between the records of a shard, or the newline of a ledger's last line, written again.
        return "harmless" if path.suffix in (".array_record", ".jsonl") else "silent"

    def _named(self, path: Path, call: Callable[[], object]) -> bool:
        try:
            call()
        except DamageError as error:
            return str(path) in str(error)
        return False


def _agree(values: Any, expected: Any) -> bool:
    """Whether the values are equal, but for the documents that are None."""
    if isinstance(values, list) and isinstance(expected, list):
        return len(values) == len(expected) and all(
            value is None or value == want for value, want in zip(values, expected, strict=True)
        )
    if isinstance(values, dict) and "documents" in values:
        others = values["facts"] == expected["facts"]
        return others and _agree(values["documents"], expected["documents"])
    return values == expected


def corpus_format(folder: Path, kind: str) -> Format:
    directory = written(folder, kind).directory

    def read() -> tuple[Any, set[str]]:
        corpus = Corpus(directory)
        corrupt: list[Any] = []
        documents = corpus.read(np.arange(len(corpus)), corrupt=corrupt)
        values = {"facts": facts(corpus), "documents": list(map(plain, documents))}
        return values, {bad.shard for bad in corrupt}

    return Format(sorted(directory.iterdir()), read, checked=directory)


def packed_format(folder: Path) -> Format:
    corpus = written(folder, "text")
    index = folder / "index"

    def read() -> tuple[Any, set[str]]:
        rows = pack(corpus, length=64, index=index)
        return plain(rows.batch(np.arange(len(rows)))), set()

    read()
    return Format([path for path in index.rglob("*") if path.is_file()], read, checked=None)


def ledger_format(folder: Path) -> Format:
    """The ledger of an interrupted write: it is continued, and the files are compared."""
    whole = written(folder, "text").directory
    stopped, again = folder / "stopped", folder / "again"
    stopped.mkdir()
    for path in whole.iterdir():
        if path.name[0] in "0l":  # shards and ledger
            shutil.copy(path, stopped)
    ledger = stopped / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))

    def read() -> tuple[Any, set[str]]:
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(stopped, again)
        source = jsonl(folder / "in.jsonl")
        try:
            write(source, again, encoder=Text(Bytes()), shard_bytes=_SHARD_BYTES, max_corrupt=1)
        except DamageError as error:  # of the copy
            raise DamageError(str(error).replace(str(again), str(stopped))) from error
        return contents(again), set()

    return Format([ledger], read, checked=None)


def contents(directory: Path) -> dict[str, str]:
    return {path.name: base64.b64encode(path.read_bytes()).decode() for path in directory.iterdir()}


def flipped(of: Format, rng: random.Random, trials: int) -> Counter[str]:
    """Flips `trials` random bits, one after the other. Every second file is drawn by its size."""
    counts: Counter[str] = Counter()
    sizes = [path.stat().st_size for path in of.files]
    for _ in range(trials):
        (path,) = rng.choices(of.files, sizes if rng.random() < 0.5 else None)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        outcome = of.outcome(path)
        if outcome == "silent":
            print(f"silent: a flip in {path}", file=sys.stderr)
        counts[outcome] += 1
        path.write_bytes(whole)
    return counts


def killed(folder: Path, rng: random.Random, kills: int) -> Counter[str]:
    """Kills forked writers at random moments until `kills` have died; finishes each corpus."""
    folder.mkdir()
    lines = [json.dumps(record) for record in records(rng, "text", 300)]
    (folder / "in.jsonl").write_text("\n".join(lines))

    def run(directory: Path) -> None:
        source = jsonl(folder / "in.jsonl")
        write(source, directory, encoder=Text(Bytes()), shard_bytes=_SHARD_BYTES)

    begin = time.perf_counter()
    run(folder / "whole")
    lasts_s = time.perf_counter() - begin
    expected = contents(folder / "whole")
    counts: Counter[str] = Counter()
    while counts["kills"] < kills:
        directory = folder / f"killed-{counts['corpora']}"
        for _ in range(rng.randint(1, 4)):
            counts["kills"] += _killed(partial(run, directory), rng.random() * lasts_s)
        run(directory)
        counts["corpora"] += 1
        counts["equal"] += contents(directory) == expected
        shutil.rmtree(directory)
    return counts


def _killed(run: Callable[[], None], after_s: float) -> bool:
    """Runs in a fork and kills it; whether it was still running."""
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def page(lines: list[dict[str, Any]]) -> str:
    """Returns the page of the documentation for the lines of a run."""
    *flips, kills = lines
    rows = (
        f"| {line['case'].removeprefix('one flipped bit: ')} | {line['flips']} | {line['named']} "
        f"| {line['harmless']} | {line['silent']} |"
        for line in flips
    )
    return "\n".join(
        [
            "Written by `packages/data/benchmarks/faults.py`. Each trial flips one bit of one file",
            "and reads everything. *Named*: an error names the file, or the damaged documents are",
            "listed with it and all others are equal. *Harmless*: everything read is equal.",
            "The bit lies between the records of a shard (`verify` names the file) or is the last",
            "newline of a ledger, whose shard is written again. *Silent*: anything else.",
            "",
            "| files of | flips | named | harmless | silent |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"`write` was killed {kills['kills']} times by SIGKILL at random moments and called",
            f"again. {kills['equal']} of {kills['corpora']} corpora have the bytes of an",
            "undisturbed run.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--table", type=Path, metavar="RESULTS")
    args = parser.parse_args()
    if args.table:
        print(page([json.loads(line) for line in args.table.read_text().splitlines()]), end="")
        return
    _workers._CHUNK_BYTES = _CHUNK_BYTES
    rng = random.Random(0)
    flips: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kills = killed(folder / "killed", rng, max(20, round(KILLS * args.part)))
        makers = {kind: partial(corpus_format, kind=kind) for kind in CORPORA}
        others = {"packed rows": packed_format, "an unfinished corpus": ledger_format}
        trials = max(20, round(FLIPS * args.part / (len(makers) + len(others))))
        for i, (kind, make) in enumerate({**makers, **others}.items()):
            flips[kind] = flipped(make(folder / str(i)), rng, trials)
    for kind, counts in flips.items():
        report(
            f"one flipped bit: {kind}",
            metric="not silent",
            unit="of the flips",
            values=[1 - counts["silent"] / counts.total()],
            flips=counts.total(),
            **{outcome: counts[outcome] for outcome in ("named", "harmless", "silent")},
        )
    report(
        "SIGKILL in write, then called again",
        metric="equal bytes",
        unit="of the corpora",
        values=[kills["equal"] / kills["corpora"]],
        **kills,
    )


if __name__ == "__main__":
    main()
