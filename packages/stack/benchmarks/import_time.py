# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What `dovetail doctor` and the recipes cost to import, over jax alone."""

import resource
import subprocess
import sys

from measure import report, rounds

CASES = {
    "jax": "import jax",
    "jax again": "import jax",
    "the command": "import dovetail.cli",
    "the recipes": "import dovetail.recipes.language_model, dovetail.recipes.generation",
}


def cpu_s(code: str) -> float:
    """CPU seconds of a fresh interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


results = rounds({name: (lambda c=c: cpu_s(c)) for name, c in CASES.items()}, repeats=5)
for name in ("the command", "the recipes"):
    report(
        f"import of {name}",
        metric="cpu_s",
        unit="s",
        values=results[name],
        peer="jax",
        peer_values=results["jax"],
        peer_again=results["jax again"],
    )
