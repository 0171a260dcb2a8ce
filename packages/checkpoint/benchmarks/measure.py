# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing of two ways of doing one thing, and the JSON line that reports it."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jax

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one call took: `wall_s`, and `cpu_s` over all threads of the process."""

    wall_s: float
    cpu_s: float


def cost(call: Callable[[], object]) -> Cost:
    """The cost of one call, which blocks on its results itself."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Cost(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Values of ours, of the peer, and of the peer once more in the same rounds: the noise."""

    ours: list[float]
    peer: list[float]
    peer_again: list[float]


def interleave(ours: Callable[[], float], peer: Callable[[], float], *, repeats: int) -> Comparison:
    """Rounds of peer, ours, peer; each call gives its value. Warm both up before."""
    rounds = [(peer(), ours(), peer()) for _ in range(repeats)]
    first, own, second = zip(*rounds, strict=True)
    return Comparison(ours=list(own), peer=list(first), peer_again=list(second))


def report(name: str, comparison: Comparison, **fields: object) -> None:
    """Prints one JSON line and appends it to results/NAME.jsonl where --record was given."""
    value = statistics.median(comparison.ours)
    peer = statistics.median(comparison.peer + comparison.peer_again)
    again = statistics.median(comparison.peer_again) / statistics.median(comparison.peer)
    ratio = value / peer
    noise = max(again, 1 / again)
    line = {
        **fields,
        "value": value,
        "minimum": min(comparison.ours),
        "spread": [min(comparison.ours), max(comparison.ours)],
        "repeats": len(comparison.ours),
        "peer_value": peer,
        "peer_minimum": min(comparison.peer + comparison.peer_again),
        "ratio": ratio,
        "peer_against_itself": again,
        "equal": 1 / noise <= ratio <= noise,
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "loadavg": os.getloadavg()[0],
        "python": ".".join(map(str, sys.version_info[:3])),
        "jax": jax.__version__,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python packages/checkpoint/benchmarks/{name}.py",
    }
    text = json.dumps(line)
    print(text)
    if "--record" in sys.argv:
        RESULTS.mkdir(exist_ok=True)
        with open(RESULTS / f"{name}.jsonl", "a", encoding="utf-8") as file:
            file.write(text + "\n")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
