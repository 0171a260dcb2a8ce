# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurements, and the JSON line that reports them."""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax


def interleaved(
    cases: Mapping[str, Callable[[], float]], *, repeats: int
) -> dict[str, list[float]]:
    """`repeats` values of every case, in rounds: what disturbs the machine disturbs all alike."""
    for case in cases.values():
        case()
    values: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            values[name].append(case())
    return values


def report(
    case: str,
    *,
    metric: str,
    unit: str,
    values: list[float],
    peer: str | None = None,
    peer_values: list[float] | None = None,
    noise: float | None = None,
    **conditions: Any,
) -> None:
    """Prints one line. noise: the ratio of the peer to itself; a ratio as near to 1 is equal."""
    value = statistics.median(values)
    peer_value = statistics.median(peer_values) if peer_values else None
    line = {
        "case": case,
        "metric": metric,
        "unit": unit,
        "value": value,
        "minimum": min(values),
        "spread": (max(values) - min(values)) / value,
        "repeats": len(values),
        "peer": peer,
        "peer_value": peer_value,
        "ratio": value / peer_value if peer_value else None,
        "noise": noise,
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "loadavg": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": f"python packages/train/benchmarks/{Path(sys.argv[0]).name}",
    }
    print(json.dumps(line | conditions), flush=True)


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
