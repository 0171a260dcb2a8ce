# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Time to import dovetail_checkpoint over that of jax and orbax, each in a process of its own."""

import subprocess
import sys
import time
from importlib.metadata import version

from measure import interleave, report

PEER = "import jax, orbax.checkpoint.experimental.v1"


def import_s(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main() -> None:
    ours = f"{PEER}, dovetail_checkpoint"
    import_s(ours)
    report(
        "import_time",
        interleave(lambda: import_s(ours), lambda: import_s(PEER), repeats=7),
        case="import dovetail_checkpoint after jax and orbax",
        metric="wall",
        unit="s",
        compile_s=0.0,
        peer=PEER,
        peer_version=f"orbax-checkpoint {version('orbax-checkpoint')}",
        limit="the interpreter and jax",
    )


if __name__ == "__main__":
    sys.exit(main())
