# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What `import dovetail_models` costs over jax and flax, in new interpreters."""

import subprocess
import sys
from importlib.metadata import version

from measure import interleaved, report

PEER = "import jax, jax.numpy; from flax import nnx"


def run(code: str) -> None:
    """Run the code in a new interpreter."""
    subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    ours = f"{PEER}; import dovetail_models"
    calls = {"ours": ours, "again": ours, "peer": PEER}
    times = interleaved(
        {name: lambda code=code: run(code) for name, code in calls.items()}, repeats=7
    )
    report(
        "import over jax and flax",
        times,
        difference_s=min(times["ours"]) - min(times["peer"]),
        peer="jax and flax",
        peer_version=f"{version('jax')}, {version('flax')}",
        jax=version("jax"),
    )
