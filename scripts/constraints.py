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
import subprocess
import tempfile
from pathlib import Path

import workspace

# What each file is for. uv has no option for an upper bound on Python, but it reads this key of the
# project that it runs in; resolving for all Pythons at once would fork on every second line. In the
# same place it is told to leave out torch where another package needs it.
_ENVIRONMENTS = {
    "3.11": "python_version == '3.11'",
    # tokamax needs what has markers for the browser, where array-record has no wheel.
    "3.12": "python_version >= '3.12' and sys_platform != 'emscripten'",
}


def command(python: str, torch_free: Path, output: Path, *, upgrade: bool) -> list[str]:
    """The `uv pip compile` that resolves one Python's set into `output`."""
    everyone = workspace.members().values()
    inputs = [str(m.path / "pyproject.toml") for m in everyone]
    extras = {extra for m in everyone for extra in m.development_extras}
    extras |= {"tpu-plan"}  # what `nox -s absent` installs
    groups = [f"{m.path}/pyproject.toml:test" for m in everyone if "test" in m.groups]
    own = ("dev", "docs", "notebooks", "release")
    groups += [f"{workspace.ROOT}/pyproject.toml:{name}" for name in own]
    line = ["uv", "pip", "compile", *inputs, str(torch_free), "--universal"]
    line += ["--no-header", "--no-annotate", "--python-version", python, "--quiet"]
    line += [part for extra in sorted(extras) for part in ("--extra", extra)]
    line += [part for group in groups for part in ("--group", group)]
    line += [part for m in everyone for part in ("--no-emit-package", m.name)]
    return [*line, "--output-file", str(output), *(["--upgrade"] if upgrade else [])]


def parity_without_torch() -> list[str]:
    """The requirements of the members' `parity` groups, less torch."""
    groups = [m.groups.get("parity", ()) for m in workspace.members().values()]
    return sorted({r for group in groups for r in group if workspace.parse(r).name != "torch"})


def plain(text: str) -> str:
    """The lines without the markers that the file's name, and its purpose, already say."""
    for known in ("python_full_version < '3.12'", "sys_platform != 'emscripten'"):
        text = text.replace(f"{known} and ", "").replace(f" and {known}", "")
        text = text.replace(f" ; {known}", "")
    return text


def resolve(python: str, *, upgrade: bool) -> None:
    """Write constraints/pyXYZ.txt for one Python."""
    target = workspace.constraints_file(python)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        native = [m.native for m in workspace.members().values() if m.native]
        left_out = json.dumps(["torch", *native])
        settings = (
            f'environments = ["{_ENVIRONMENTS[python]}"]\nexclude-dependencies = {left_out}\n'
        )
        (project / "pyproject.toml").write_text("[tool.uv]\n" + settings, encoding="utf-8")
        parity = project / "parity.in"
        parity.write_text("\n".join(parity_without_torch()) + "\n", encoding="utf-8")
        output = project / target.name
        if target.exists():
            output.write_text(target.read_text(encoding="utf-8"), encoding="utf-8")
        line = command(python, parity, output, upgrade=upgrade)
        subprocess.run(line, cwd=project, check=True)
        target.write_text(plain(output.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """Resolve both Pythons."""
    parser = argparse.ArgumentParser(prog="scripts/constraints", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    for python in workspace.PYTHONS:
        resolve(python, upgrade=upgrade)
        count = len(workspace.constraints(python))
        print(f"{workspace.constraints_file(python).name}: {count} versions")


if __name__ == "__main__":
    main()
