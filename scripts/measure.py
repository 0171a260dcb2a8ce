# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of all packages share: interleaved rounds, and the line that reports a case.

A benchmark is a script in packages/NAME/benchmarks/ that prints one JSON line per case and nothing
else. `nox -s bench -- NAME` runs them; by hand, set PYTHONPATH=scripts.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one call took: `wall_s`, and `cpu_s` over all threads of this process."""

    wall_s: float
    cpu_s: float


def cost(call: Callable[[], object]) -> Cost:
    """The cost of one call, which must itself wait for its results."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Cost(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


def rounds(cases: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, list[Any]]:
    """`repeats` results of each case, in rounds, after one round that is thrown away.

    In rounds, because a machine that slows down then slows all cases; odd rounds run backwards, so
    that no case always follows the same one. Give a peer twice, under two names, for the noise.
    """
    results: dict[str, list[Any]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name in list(cases)[:: -1 if turn % 2 else 1]:
            result = cases[name]()
            if turn:
                results[name].append(result)
    return results


def report(
    case: str,
    *,
    metric: str,
    unit: str,
    values: Sequence[float],
    peer: str | None = None,
    peer_values: Sequence[float] | None = None,
    peer_again: Sequence[float] | None = None,
    compile_s: float | None = None,
    **conditions: Any,
) -> None:
    """Prints the line of one case.

    value is the median and minimum the least of `values`; spread is the middle half's width over
    the median. ratio is ours over the peer's, the median over rounds; noise is the same ratio of
    `peer_again`, the peer measured a second time, to the peer: a ratio as near to 1 means equal.
    peer: a distribution's name, whose version is added, or other words. conditions: what else
    was held, such as sizes.
    """
    line = {
        "case": case,
        "metric": metric,
        "unit": unit,
        "value": _short(statistics.median(values)),
        "minimum": _short(min(values)),
        "spread": _short(_spread(values)),
        "repeats": len(values),
        "compile_s": None if compile_s is None else _short(compile_s),
        "peer": peer,
        "peer_version": None if peer is None else _version(peer),
        "peer_value": _short(statistics.median(peer_values)) if peer_values else None,
        "ratio": _ratio(values, peer_values),
        "noise": _ratio(peer_again, peer_values),
        **conditions,
        **_machine(),
    }
    print(json.dumps(line), flush=True)


def _ratio(values: Sequence[float] | None, peer: Sequence[float] | None) -> float | None:
    if not values or not peer:
        return None
    return _short(statistics.median(a / b for a, b in zip(values, peer, strict=True)))


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    script = Path(sys.argv[0]).resolve()
    return {
        "device": _device(),
        "cores": os.cpu_count(),
        "loadavg": _short(os.getloadavg()[0]),
        "python": platform.python_version(),
        "jax": _version("jax"),
        "commit": _git("describe", "--always", "--dirty"),
        "date": datetime.date.today().isoformat(),
        "command": f"PYTHONPATH=scripts python {script.relative_to(ROOT).as_posix()}",
    }


def _device() -> str:
    """The accelerator's kind if JAX is loaded and uses one, else the processor's."""
    if "jax" in sys.modules:
        device = sys.modules["jax"].devices()[0]
        if device.platform != "cpu":
            return device.device_kind
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"cpu {line.split(':')[1].strip()}"
    return f"cpu {platform.machine()}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
