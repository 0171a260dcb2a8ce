# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of all packages: interleaved rounds, and the line that reports a case.

A benchmark, packages/NAME/benchmarks/X.py, prints one JSON line per case and nothing else; for the
record, into results/X.jsonl. `nox -s bench -- NAME` runs all; by hand, set PYTHONPATH=scripts.
"""

import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Cost(NamedTuple):
    """The time of one call: `wall_s`, and `cpu_s` over all threads of this process."""

    wall_s: float
    cpu_s: float


def cost(call: Callable[[], object]) -> Cost:
    """Returns the cost of one call, which must itself wait for its results."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Cost(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


def rounds(cases: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, list[Any]]:
    """Returns `repeats` results of each case, in rounds, after one round that is thrown away.

    In rounds, because a machine that slows down then slows all cases; odd rounds run backwards, so
    that no case always follows the same one. Give a peer twice, under two names, for the noise.
    """
    results: dict[str, list[Any]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name in list(cases)[:: -1 if turn % 2 else 1]:
            results[name].append(cases[name]())
    return {name: values[1:] for name, values in results.items()}


def imports(ours: str, theirs: str, *, peer: str | None = None) -> None:
    """Reports the CPU seconds in which a fresh interpreter imports `ours`, against `theirs`.

    Both are written as behind `import`. peer: the distributions of `theirs`, if named otherwise.
    """

    def seconds(names: str) -> float:
        code = f"from time import process_time as t; a = t(); import {names}; print(t() - a)"
        return float(subprocess.check_output([sys.executable, "-c", code]))

    modules = {"ours": ours, "theirs": theirs, "again": theirs}
    times = rounds({name: (lambda x=x: seconds(x)) for name, x in modules.items()}, repeats=7)
    report(
        f"import {ours}",
        metric="cpu_s",
        unit="s",
        values=times["ours"],
        peer=peer or theirs,
        peer_values=times["theirs"],
        peer_again=times["again"],
    )


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

    `value` is the median, `spread` the width of the middle half over it, `ratio` the median over
    rounds of ours over the peer's. `noise` is the ratio of `peer_again` to the peer: a ratio as
    near to 1 means equal.

    Args:
        case: Name of the case.
        metric: Such as "wall_s".
        unit: Unit of the values.
        values: One for each round; so are `peer_values` and `peer_again`, a second measurement.
        peer: Distributions as in "jax, flax", whose versions are added, or other words.
        compile_s: Seconds of the compilation.
        conditions: Further fields of the line.
    """
    value = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else [value] * 3
    line = {
        "case": case,
        "metric": metric,
        "unit": unit,
        "value": value,
        "minimum": min(values),
        "spread": (high - low) / value,
        "repeats": len(values),
        "compile_s": compile_s,
        "peer": peer,
        "peer_version": None if peer is None else _versions(peer),
        "peer_value": statistics.median(peer_values) if peer_values else None,
        "ratio": _ratio(values, peer_values),
        "noise": _ratio(peer_again, peer_values),
        **conditions,
        "device": _device(),
        "cores": os.cpu_count(),
        "loadavg": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": _versions("jax"),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "command": _command(),
    }
    short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in line.items()}
    print(json.dumps(short), flush=True)


def _ratio(values: Sequence[float] | None, peer: Sequence[float] | None) -> float | None:
    if not values or not peer:
        return None
    return statistics.median(a / b for a, b in zip(values, peer, strict=True))


def _versions(distributions: str) -> str | None:
    try:
        return ", ".join(map(importlib.metadata.version, distributions.split(", ")))
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> str:
    """The accelerator's kind if JAX is loaded and uses one, else the processor's."""
    jax = sys.modules.get("jax")
    if jax and jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    file = Path("/proc/cpuinfo")  # Linux alone has it
    named = re.search(r"model name\s*: (.+)", file.read_text() if file.exists() else "")
    return f"cpu {named[1] if named else platform.machine()}"


def _command() -> str:
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    if script.suffix:
        return f"PYTHONPATH=scripts python {script}"
    return " ".join([str(script), *sys.argv[1:]])  # a command of scripts/


def commit() -> str | None:
    """Returns the short commit, with "-dirty" if tracked files but results on record differ.

    None for a copy of the files without git or its history, as a rented machine may have.
    """
    try:
        head = subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    diff = ["git", "diff", "--quiet", "HEAD", "--", ":!*/benchmarks/results/*", ":!docs/results/*"]
    return head.strip() + ("-dirty" if subprocess.call(diff, cwd=ROOT) else "")
