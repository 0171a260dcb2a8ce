# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the files that several packages share equal to their originals in scripts/shared.

    python scripts/copies.py            # writes the copies that differ

No package imports another, and there is no package of common code: it would have to be released
with each change and would tie the versions of all. A small text that several need is copied, and
`integration_tests/test_copies.py` asserts that the copies are equal.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path("scripts/shared")

# {original: the packages that have a copy, under the same name, in their module's folder}
COPIES = {
    "_command.py": ("checkpoint", "data", "infer", "serve", "stack"),
    "_deprecations.py": ("checkpoint", "data"),
    "_durable.py": ("checkpoint", "data", "models", "serve"),
    "_groups.py": ("cluster", "train"),
    "_safetensors.py": ("checkpoint", "models", "serve"),
    "_traces.py": ("cluster", "train"),
    "_patterns.py": ("checkpoint", "models", "optim", "quant", "serve", "train"),
}


def copies(name: str) -> list[Path]:
    """Returns the places of an original's copies, relative to the root."""
    return [Path(f"packages/{p}/src/dovetail_{p}/{name}") for p in COPIES[name]]


def differing(root: Path = ROOT) -> list[Path]:
    """Returns the copies that are missing or differ from their original, relative to the root."""
    originals = {name: (root / SHARED / name).read_bytes() for name in COPIES}
    return [
        copy
        for name, original in originals.items()
        for copy in copies(name)
        if not (root / copy).is_file() or (root / copy).read_bytes() != original
    ]


def main() -> None:
    """Writes the copies that differ, and names them."""
    for copy in differing(ROOT):
        shutil.copyfile(ROOT / SHARED / copy.name, ROOT / copy)
        print(f"{copy} written from {SHARED / copy.name}")


if __name__ == "__main__":
    main()
