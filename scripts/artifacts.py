# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks wheels and sdists before an upload: licence, types, and a README that renders.

python scripts/artifacts.py dist/*
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import wheels
import workspace


def contents(file: Path) -> dict[str, bytes]:
    """Returns the files of a wheel, or of an sdist without its top folder, by name."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(file) as sdist:
        opened = [(m.name, sdist.extractfile(m)) for m in sdist.getmembers() if m.isfile()]
        return {name.partition("/")[2]: f.read() for name, f in opened if f is not None}


def problems(file: Path) -> list[str]:
    """Returns what the file lacks, one sentence each. scripts/metadata.py wrote all else."""
    files = contents(file)
    lacks = []
    copies = [n for n in files if n == "LICENSE" or n.endswith(".dist-info/licenses/LICENSE")]
    if [files[n] for n in copies] != [(workspace.ROOT / "LICENSE").read_bytes()]:
        lacks.append(f"LICENSE must be in it, as in the root; got {copies}")
    (metadata,) = [n for n in files if n == "PKG-INFO" or n.endswith(".dist-info/METADATA")]
    if b"\nLicense-Expression: Apache-2.0\n" not in files[metadata]:
        lacks.append("License-Expression must be Apache-2.0")
    if not any(n.endswith("/py.typed") for n in files):
        lacks.append("py.typed must be in it")
    return [f"{file.name}: {lack}" for lack in lacks]


def rendering(files: Sequence[Path]) -> str:
    """Returns the complaints of `twine check --strict`, which renders each README; "" for none."""
    tested = workspace.constraints_file(workspace.PYTHONS[-1])
    line = [wheels.UV, "tool", "run", "--quiet", "--constraints", str(tested)]
    line += ["twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    """Prints size in bytes, SHA-256 and name of each file, or the problems with exit code 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="wheels and sdists")
    files = sorted(parser.parse_args().files)
    lacks = [lack for file in files for lack in problems(file)]
    lacks += [text] if (text := rendering(files)) else []
    for file in () if lacks else files:
        data = file.read_bytes()
        print(f"{len(data):>10,}  {hashlib.sha256(data).hexdigest()}  {file.name}")
    print(*lacks, sep="\n")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
