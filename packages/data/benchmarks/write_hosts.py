# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a corpus on one and on two workers of a local Ray, and in one process without Ray.

JSON lines and a byte-level BPE, as in writing.py. Each case runs in a process of its own, on a
local Ray whose workers have loaded the library: the start of Ray is not counted. CPU seconds are
those of the driver, of Ray's daemons and of the workers. The corpora are compared byte by byte.
"""

import functools
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from writing import prepare

from dovetail_data import Pretrained, Text, jsonl, write
from measure import report, rounds

REPEATS, COPIES = 3, 2


def measured(hosts: int, directory: Path) -> dict[str, float | str]:
    """Returns wall and CPU seconds, and the digest of the corpus; `hosts` 0 is without Ray."""
    program = [sys.executable, __file__, str(hosts), str(directory)]
    return json.loads(subprocess.check_output(program))


def run(hosts: int, directory: Path) -> None:
    """Runs in such a process and prints the result of `measured`."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Text(Pretrained(directory / "bpe"))
    source = jsonl(directory)
    options = {"encoder": encoder, "shard_bytes": 1 << 23}
    if hosts:
        import ray

        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        ray.init("local", num_cpus=hosts, include_dashboard=False, **quiet)
        options["hosts"] = hosts
    with tempfile.TemporaryDirectory() as scratch:
        small = jsonl(directory / "0-0.jsonl")
        write(small, Path(scratch) / "warm", **options)  # each worker loads the tokenizer
        before, begin = _cpu_s(), time.perf_counter()
        write(source, Path(scratch) / "out", **options)
        spent = {"wall_s": time.perf_counter() - begin, "cpu_s": _cpu_s() - before}
        files = sorted((Path(scratch) / "out").iterdir())
        content = b"".join(path.read_bytes() for path in files)
    print(json.dumps({**spent, "sha256": hashlib.sha256(content).hexdigest()}))


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
    with tempfile.TemporaryDirectory() as name:
        directory, _ = prepare(Path(name))
        for path in sorted(directory.glob("*.jsonl")):
            for i in range(COPIES):
                (directory / f"{path.stem}-{i}.jsonl").write_bytes(path.read_bytes())
            path.unlink()
        names = {"no Ray": 0, "1": 1, "2": 2, "1 again": 1}
        cases = {case: functools.partial(measured, n, directory) for case, n in names.items()}
        results = rounds(cases, repeats=REPEATS)
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
    if sys.argv[1:]:
        run(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
