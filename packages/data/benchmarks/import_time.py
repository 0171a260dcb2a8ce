# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds that `import dovetail_data` takes, and what it adds to those of Grain."""

import importlib.metadata
import resource
import subprocess
import sys

from measure import interleaved, report


def cpu_seconds(statement: str) -> float:
    """User and system time of a new interpreter that runs `statement`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    statements = {
        "bare": "pass",
        "ours": "import dovetail_data",
        "jax": "import jax",
        "grain": "import grain",
        "grain again": "import grain",
        "over grain": "import grain, dovetail_data, dovetail_data._iterator",
    }
    values = interleaved(
        {name: lambda line=line: cpu_seconds(line) for name, line in statements.items()}, repeats=9
    )
    above = {
        name: [a - b for a, b in zip(seconds, values["bare"], strict=True)]
        for name, seconds in values.items()
    }
    for case, name, peer in [
        ("import dovetail_data", "ours", "jax"),
        ("import dovetail_data", "ours", "grain"),
        ("import grain and dovetail_data", "over grain", "grain"),
        ("A/A: import grain", "grain again", "grain"),
    ]:
        report(
            case,
            metric="import_cpu_seconds",
            unit="s",
            values=above[name],
            peer=(peer, importlib.metadata.version(peer), above[peer]),
        )


if __name__ == "__main__":
    main()
