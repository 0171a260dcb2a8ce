# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Resolve the tested set again: writes constraints/py311.txt and constraints/py312.txt.

Every member with its extras for tests and its groups, and the workspace's own groups, resolved
together. The members and their native wheels are left out, and so is torch, which the parity
session installs by itself.
`--upgrade` looks for newer versions; without it what is written stays as long as it satisfies.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import workspace

# uv has no option for an upper bound on Python, but it reads this key of the project that it runs
# in; resolving for all Pythons at once would fork on every second line.
_ENVIRONMENTS = {
    "3.11": "python_version == '3.11'",
    # tokamax needs what has markers for the browser, where array-record has no wheel.
    "3.12": "python_version >= '3.12' and sys_platform != 'emscripten'",
}


def command(python: str) -> list[str]:
    """The `uv pip compile` that resolves one Python's set from the members."""
    everyone = workspace.members().values()
    extras = {extra for m in everyone for extra in m.development_extras}
    extras |= {"tpu-plan"}  # what `nox -s absent` installs
    own = ("dev", "docs", "notebooks", "release")
    groups = [f"{workspace.ROOT}/pyproject.toml:{name}" for name in own]
    for name in ("test", "parity"):
        groups += [f"{m.path}/pyproject.toml:{name}" for m in everyone if name in m.groups]
    line = ["uv", "pip", "compile", *(str(m.path / "pyproject.toml") for m in everyone)]
    line += ["--universal", "--no-header", "--no-annotate", "--quiet", "--python-version", python]
    line += [part for extra in sorted(extras) for part in ("--extra", extra)]
    line += [part for group in groups for part in ("--group", group)]
    return line + [part for m in everyone for part in ("--no-emit-package", m.name)]


def resolve(python: str, *options: str) -> None:
    """Write constraints/pyXYZ.txt for one Python."""
    target = workspace.constraints_file(python)
    native = [m.native for m in workspace.members().values() if m.native]
    settings = f'environments = ["{_ENVIRONMENTS[python]}"]\n'
    settings += f"exclude-dependencies = {json.dumps(['torch', *native])}\n"
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "pyproject.toml").write_text(f"[tool.uv]\n{settings}", encoding="utf-8")
        output = project / target.name
        shutil.copy(target, output)  # what is written stays as long as it satisfies
        line = [*command(python), *options, "--output-file", str(output)]
        subprocess.run(line, cwd=project, check=True)
        text = output.read_text(encoding="utf-8")
    # Without the markers that the file's name, and its purpose, already say.
    for known in ("python_full_version < '3.12'", "sys_platform != 'emscripten'"):
        for marker in (f"{known} and ", f" and {known}", f" ; {known}"):
            text = text.replace(marker, "")
    target.write_text(text, encoding="utf-8")


def main() -> None:
    """Resolve both Pythons."""
    parser = argparse.ArgumentParser(prog="scripts/constraints", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    for python in workspace.PYTHONS:
        resolve(python, *["--upgrade"] * upgrade)


if __name__ == "__main__":
    main()
