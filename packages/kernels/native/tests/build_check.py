# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python build_check.py OUTPUT`: builds check.cc with the sanitizers of addresses and of C++."""

import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(NATIVE))

from build_library import kernels, link  # noqa: E402

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]

if __name__ == "__main__":
    output = Path(sys.argv[1])
    objects = kernels(output.parent, extra=SANITIZE, also=[NATIVE / "tests/check.cc"])
    link([*SANITIZE, *objects], output)
