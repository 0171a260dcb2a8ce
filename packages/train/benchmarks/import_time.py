# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The time of `import dovetail_train` over that of what it stands on: jax, flax and optax."""

import statistics
import subprocess
import sys

from measure import interleaved, report

REPEATS = 5
BELOW = "import jax, flax.nnx, optax"


def cpu_seconds(code):
    """CPU seconds of a fresh interpreter that runs `code`."""
    measured = f"import time\n{code}\nprint(time.process_time())"
    out = subprocess.run(
        [sys.executable, "-c", measured], capture_output=True, text=True, check=True
    )
    return float(out.stdout)


def main():
    values = interleaved(
        {
            "ours": lambda: cpu_seconds(f"{BELOW}\nimport dovetail_train"),
            "below": lambda: cpu_seconds(BELOW),
            "below again": lambda: cpu_seconds(BELOW),
        },
        repeats=REPEATS,
    )
    medians = {name: statistics.median(x) for name, x in values.items()}
    report(
        "import dovetail_train",
        metric="CPU time of a fresh process",
        unit="s",
        values=values["ours"],
        peer=BELOW,
        peer_values=values["below"],
        noise=medians["below again"] / medians["below"],
    )


if __name__ == "__main__":
    main()
