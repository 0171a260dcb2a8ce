# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurements, and the line that reports one."""

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def interleaved(
    candidates: Mapping[str, Callable[[], float]], *, repeats: int
) -> dict[str, list[float]]:
    """`repeats` values of each candidate, in rounds, after one round that is thrown away.

    In rounds, so that a machine that slows down slows all candidates. Odd rounds run backwards, so
    that no candidate always follows the same one.
    """
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        names = list(candidates)[:: -1 if turn % 2 else 1]
        for name in names:
            value = candidates[name]()
            if turn:
                values[name].append(value)
    return values


def report(
    case: str,
    *,
    metric: str,
    unit: str,
    values: list[float],
    peer: tuple[str, str, list[float]] | None = None,
    **conditions: Any,
) -> None:
    """Prints one JSON line. values: of ours; peer: (name, version, values), of the same rounds.

    value is the median, spread the middle half's width relative to it, ratio ours over the peer's,
    the median over rounds.
    """
    name, version, others = peer or (None, None, [])
    line = {
        "case": case,
        "metric": metric,
        "unit": unit,
        "value": _short(statistics.median(values)),
        "spread": _short(_spread(values)),
        "repeats": len(values),
        "compile_s": 0,
        "peer": name,
        "peer_version": version,
        "peer_value": _short(statistics.median(others)) if others else None,
        "ratio": _short(statistics.median(a / b for a, b in zip(values, others, strict=True)))
        if others
        else None,
        **conditions,
        "device": f"cpu {_cpu()}",
        "cores": os.cpu_count(),
        "loadavg": _short(os.getloadavg()[0]),
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": f"python packages/data/benchmarks/{Path(sys.argv[0]).name}",
    }
    print(json.dumps(line), flush=True)


def _spread(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    here = Path(__file__).parent
    return subprocess.run(command, cwd=here, capture_output=True, text=True).stdout.strip()
