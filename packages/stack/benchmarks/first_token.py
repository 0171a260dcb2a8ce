# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds from the construction of an engine on a directory to the first token of a request.

One request of 32 ids, greedy, on the directories of `random_llamas`, each time in a new process
that keeps nothing from the last: no compiled program, though the file is in the page cache. The
imports are apart, as import_s. Ours compiles what the request needs; vLLM compiles its model at the
start, or not at all with `enforce_eager`, which it says to start soonest with. The environments are
those of generation.py.
"""

import argparse
import functools
import os
import statistics
import tempfile
from pathlib import Path

from generation import prompts
from peer_process import Peer
from random_llamas import CONFIGS, saved

from measure import report, rounds

REPEATS = 3
WHO = ("engine", "vllm", "vllm_eager", "transformers")


def seconds(who: str, name: str, directory: Path) -> tuple[float, float, str]:
    """Of the imports, and from the construction to the first token. Then the version."""
    peer = Peer(who, directory, cores=os.sched_getaffinity(0))
    first = peer.ask(prompts(name, 1, 0), 1)["wall_s"]
    peer.close()
    return peer.started["import_s"], peer.started["construct_s"] + first, peer.version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CONFIGS, action="append", help="all by default")
    models = parser.parse_args().model or CONFIGS
    with tempfile.TemporaryDirectory() as folder:
        for name in models:
            directory = saved(name, Path(folder))
            whos = [who for who in WHO if Peer.installed(who)]
            calls = {who: functools.partial(seconds, who, name, directory) for who in whos}
            results = rounds(calls, repeats=REPEATS)
            imports = {who: statistics.median(i for i, *_ in results[who]) for who in whos}
            for peer in whos[1:]:
                report(
                    f"{name} construct to first token, against {peer}",
                    metric="wall_s",
                    unit="s",
                    values=[s for _, s, _ in results["engine"]],
                    peer=f"{peer} {results[peer][0][2]}",
                    peer_values=[s for _, s, _ in results[peer]],
                    import_s=imports["engine"],
                    peer_import_s=imports[peer],
                )


if __name__ == "__main__":
    main()
