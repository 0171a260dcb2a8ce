# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Installs each package in a fresh environment, and records what comes along, in docs/.

`python scripts/install_sizes.py [PACKAGE ...]`, without names all. The versions are those of
constraints/ for the Python that runs it. Bytes are those of the files that the distributions list,
without bytecode, which pip adds. The installation page is generated from the record.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import workspace

RECORD = workspace.ROOT / "docs/install_sizes.jsonl"
UV = str(Path(sys.executable).with_name("uv"))
# Run in the environment: {name: bytes} of its distributions.
MEASURE = """
import importlib.metadata, json
def size(file):
    path = file.locate()
    return path.stat().st_size if path.is_file() and path.suffix != ".pyc" else 0
dists = importlib.metadata.distributions()
print(json.dumps({d.name.lower(): sum(map(size, d.files or [])) for d in dists}))
"""


def measure(member: workspace.Member, everyone: list[workspace.Member]) -> dict[str, Any]:
    """Returns the record of one package, installed with its own dependencies alone."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    sources = [str(m.path) for m in workspace.needs(member, everyone)]
    with tempfile.TemporaryDirectory() as folder:
        inside = str(Path(folder) / "bin" / "python")
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        constraints = ("--constraint", str(workspace.constraints_file(python)))
        install = [UV, "pip", "install", "--quiet", "--no-compile", "--python", inside]
        subprocess.run([*install, *constraints, *sources], check=True)
        line = [inside, "-I", "-c", MEASURE]
        output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    sizes = json.loads(output)
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    return {
        "package": member.name,
        "version": member.version,
        "distributions": len(sizes),
        "bytes": sum(sizes.values()),
        "largest": {name: sizes[name] for name in largest},
        "python": python,
        "jax": workspace.constraints(python)["jax"],
        "platform": f"{platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main() -> None:
    """Measures the named packages and rewrites their lines of the record."""
    everyone = workspace.members()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", choices=[*everyone, []], metavar="PACKAGE")
    names = parser.parse_args().packages or list(everyone)
    text = RECORD.read_text(encoding="utf-8") if RECORD.exists() else ""
    lines = {line["package"]: line for line in map(json.loads, text.splitlines())}
    for name in names:
        line = measure(everyone[name], list(everyone.values()))
        lines[line["package"]] = line
        print(json.dumps(line), flush=True)
    ordered = [lines[m.name] for m in everyone.values() if m.name in lines]
    RECORD.write_text("".join(json.dumps(line) + "\n" for line in ordered), encoding="utf-8")


if __name__ == "__main__":
    main()
