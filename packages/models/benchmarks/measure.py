# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Timing of a case beside its peer, and the line that reports it."""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def interleaved(calls: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, all of them once per round; one round of warming up is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if i:
                times[name].append(time.perf_counter() - start)
    return times


def report(case: str, times: dict[str, list[float]], **more: Any) -> None:
    """Print one JSON line of `times` (s) of "ours", "again" (ours: the noise) and "peer"."""
    ours, again, peer = times["ours"], times["again"], times["peer"]
    value, other = statistics.median(ours), statistics.median(peer)
    line = {
        "case": case,
        "metric": "wall time",
        "unit": "s",
        "value": value,
        "minimum": min(ours),
        "spread": max(ours) - min(ours),
        "repeats": len(ours),
        "compile_s": 0.0,
        "peer_value": other,
        "peer_minimum": min(peer),
        "ratio": value / other,
        "noise_ratio": statistics.median(again) / value,
        "device": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "loadavg": os.getloadavg()[0],
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        **more,
    }
    print(json.dumps(line))


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
