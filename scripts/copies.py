# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the files that several packages share equal to their originals in scripts/shared.

    python scripts/copies.py            # writes the copies that differ

No package imports another, and there is no package of common code: it would have to be released
with each change and would tie the versions of all. A small text that several need is copied, and
`integration_tests/test_project_files.py` asserts that the copies are equal.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from workspace import ROOT

SHARED = Path("scripts/shared")


def copies() -> dict[Path, list[Path]]:
    """Returns the originals, each with the files of its name in the packages' modules."""
    originals = sorted((ROOT / SHARED).glob("*.py"))
    return {file: sorted(ROOT.glob(f"packages/*/src/*/{file.name}")) for file in originals}


def main() -> None:
    """Writes the copies that differ, and names them."""
    for original, others in copies().items():
        for copy in others:
            if copy.read_bytes() != original.read_bytes():
                shutil.copyfile(original, copy)
                print(f"{copy.relative_to(ROOT)} written from {SHARED / original.name}")


if __name__ == "__main__":
    main()
