# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks wheels and sdists before an upload: licence, classifiers, and a README that renders.

python scripts/artifacts.py dist/*
"""

from __future__ import annotations

import argparse
import email.message
import email.parser
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import wheels
import workspace

TYPED = "Typing :: Typed"


def contents(file: Path) -> dict[str, bytes]:
    """Returns the files of a wheel, or of an sdist without its top folder, by name."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(file) as sdist:
        members = [m for m in sdist.getmembers() if m.isfile()]
        opened = [(m.name, sdist.extractfile(m)) for m in members]
        return {name.partition("/")[2]: f.read() for name, f in opened if f is not None}


def metadata(files: dict[str, bytes]) -> email.message.Message:
    """Returns METADATA of a wheel or PKG-INFO of an sdist."""
    names = [n for n in files if n == "PKG-INFO" or n.endswith(".dist-info/METADATA")]
    if len(names) != 1:
        raise ValueError(
            f"a wheel or an sdist must have one file of metadata; got names={names}; "
            "build it by uv build"
        )
    return email.parser.Parser().parsestr(files[names[0]].decode("utf-8"))


def problems(file: Path) -> list[str]:
    """Returns what the file lacks, one sentence each."""
    files = contents(file)
    described = metadata(files)
    classifiers = described.get_all("Classifier") or []
    lacks = []
    licence = (workspace.ROOT / "LICENSE").read_bytes()
    copies = [n for n in files if n == "LICENSE" or n.endswith(".dist-info/licenses/LICENSE")]
    if [files[n] for n in copies] != [licence]:
        lacks.append(f"LICENSE must be in it, as in the root; got {copies}")
    if described["License-Expression"] != "Apache-2.0":
        lacks.append(
            f"License-Expression must be Apache-2.0; got {described['License-Expression']}"
        )
    if any(c.startswith("License ::") for c in classifiers):
        lacks.append("a licence classifier must not stand beside a licence expression (PEP 639)")
    if TYPED not in classifiers:
        lacks.append(f"the classifier {TYPED} must be in it")
    if not any(n.endswith("/py.typed") for n in files):
        lacks.append("py.typed must be in it")
    if not described["Keywords"]:
        lacks.append("keywords must be in it")
    if described["Description-Content-Type"] != "text/markdown":
        lacks.append("the README must be its description, as text/markdown")
    return [f"{file.name}: {lack}" for lack in lacks]


def rendering(files: Sequence[Path]) -> str:
    """Returns the complaints of `twine check --strict`, which renders each README; "" for none."""
    tested = workspace.constraints_file(workspace.PYTHONS[-1])
    line = [wheels.UV, "tool", "run", "--quiet", "--constraints", str(tested)]
    line += ["twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def table(files: Sequence[Path]) -> str:
    """Returns the lines of an upload: size in bytes, SHA-256, name."""
    lines = []
    for file in sorted(files):
        data = file.read_bytes()
        lines.append(f"{len(data):>10,}  {hashlib.sha256(data).hexdigest()}  {file.name}")
    return "\n".join(lines)


def main() -> int:
    """Prints the table, or the problems with exit code 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="wheels and sdists")
    files = parser.parse_args().files
    lacks = [lack for file in files for lack in problems(file)]
    lacks += [text] if (text := rendering(files)) else []
    print("\n".join(lacks) or table(files))
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
