# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python build_check.py OUTPUT [SANITIZERS]`: builds check.cc; by default address,undefined."""

import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(NATIVE))

from build_library import kernels, link  # noqa: E402

if __name__ == "__main__":
    output, *sanitizers = sys.argv[1:]
    chosen = ",".join(sanitizers) or "address,undefined"
    flags = [f"-fsanitize={chosen}", "-fno-sanitize-recover=all", "-g1", "-O0", "-pthread"]
    folder = Path(output).parent
    objects = kernels(folder, extra=flags, also=[NATIVE / "tests/check.cc"])
    link([*flags, *objects], Path(output))
