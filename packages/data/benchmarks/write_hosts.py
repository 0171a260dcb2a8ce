# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a corpus on one and on two workers of a local Ray, and in one process without Ray.

JSON lines and a byte-level BPE, as in writing.py. All cases share one local Ray of two CPUs, whose
workers have loaded the library: the start of Ray is not counted. CPU seconds are those of the
driver, of Ray's daemons and of the workers. The corpora are compared byte by byte.
"""

import functools
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

import ray
from writing import prepare

from dovetail_data import Pretrained, Text, jsonl, write
from measure import report, rounds

REPEATS, FILES, SHARD_BYTES = 3, 4, 1 << 21


def measured(hosts: int | None, directory: Path) -> dict[str, float | str]:
    """Returns wall and CPU seconds, and the digest of the corpus; `hosts` None is without Ray."""
    encoder = Text(Pretrained(directory / "bpe"))
    with tempfile.TemporaryDirectory() as scratch:
        source = jsonl(directory)
        before, begin = _cpu_s(), time.perf_counter()
        write(source, Path(scratch) / "out", encoder=encoder, shard_bytes=SHARD_BYTES, hosts=hosts)
        spent = {"wall_s": time.perf_counter() - begin, "cpu_s": _cpu_s() - before}
        files = sorted((Path(scratch) / "out").iterdir())
        content = b"".join(path.read_bytes() for path in files)
    return {**spent, "sha256": hashlib.sha256(content).hexdigest()}


def _cpu_s() -> float:
    """Returns the CPU seconds of this process and all of its descendants that live."""
    parents, ticks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    total = 0
    for process in ticks:
        ancestor = process
        while ancestor and ancestor != os.getpid():
            ancestor = parents.get(ancestor, 0)
        total += ticks[process] if ancestor else 0
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each process that encodes
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    ray.init("local", num_cpus=2, include_dashboard=False, **quiet)
    with tempfile.TemporaryDirectory() as name:
        directory, _ = prepare(Path(name))
        for path in sorted(directory.glob("*.jsonl"))[FILES:]:
            path.unlink()
        counts = {"no Ray": None, "1": 1, "2": 2, "1 again": 1}
        cases = {case: functools.partial(measured, n, directory) for case, n in counts.items()}
        results = rounds(cases, repeats=REPEATS)
    ray.shutdown()
    if len({repeat["sha256"] for repeats in results.values() for repeat in repeats}) > 1:
        raise SystemExit("the corpora of the cases differ")
    for case, peer, again in (("2", "1", "1 again"), ("1", "no Ray", None)):
        for metric in ("wall_s", "cpu_s"):
            report(
                f"{case} workers of Ray, against {peer}",
                metric=metric,
                unit="s",
                values=[repeat[metric] for repeat in results[case]],
                peer=f"dovetail-data, {peer}",
                peer_values=[repeat[metric] for repeat in results[peer]],
                peer_again=[repeat[metric] for repeat in results[again]] if again else None,
            )


if __name__ == "__main__":
    main()
