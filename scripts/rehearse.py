# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rehearse a release of everything, from the commit at hand, in a throw-away clone.

The clone is tagged as scripts/release would tag it: each package with fragments by a minor version,
the meta-package by calendar. Its extras are resolved from a folder of the wheels, which serves as
the index. Then the sessions `build` and `bare` of the clone check the wheels, install each package
alone on each Python, and run the programs of its README there. The last lines list what would be
uploaded. Nothing leaves this machine, and the repository stays as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import workspace
from workspace import META

SETTINGS = ("user.name=Rehearsal", "user.email=rehearsal@example.invalid")
SETTINGS += ("commit.gpgsign=false", "tag.gpgsign=false")


def call(*line: str | Path, cwd: Path) -> None:
    """Runs a command that must succeed."""
    subprocess.run(list(map(str, line)), cwd=cwd, check=True)


def clone(target: Path, root: Path = workspace.ROOT) -> None:
    """Clones the commit at hand, with its tags and with an author for the release commits."""
    settings = [word for setting in SETTINGS for word in ("--config", setting)]
    call("git", "clone", "--quiet", "--no-hardlinks", *settings, root, target, cwd=root)


def tag(root: Path) -> None:
    """Releases each library that has fragments, then the meta-package, by the clone's script."""
    release = (sys.executable, root / "scripts" / "release.py")
    for member in workspace.members(root).values():
        if member.folder != META and list((member.path / "changes").glob("*.*.md")):
            call(*release, member.folder, "minor", cwd=root)
    call(*release, META, cwd=root)


def build(root: Path) -> list[Path]:
    """Returns the built files of the clone: of each member, and of its native wheel."""
    for member in workspace.members(root).values():
        for folder in [member.path, *([member.path / "native"] if member.native else [])]:
            call("uv", "build", "--quiet", folder, "--out-dir", root / "dist", cwd=root)
    return sorted(f for f in (root / "dist").iterdir() if f.suffix in (".whl", ".gz"))


def resolve(root: Path) -> None:
    """Resolves the meta-package with each of its extras, on each Python."""
    meta = workspace.members(root)[META]
    needed = root / "dist" / "needed.in"
    for extra in ("", *meta.extras):
        needed.write_text(f"{meta.name}[{extra}]=={meta.version}\n", encoding="utf-8")
        for python in (*workspace.PYTHONS, *workspace.NEWER):
            line = ["uv", "pip", "compile", "--quiet", "--python-version", python, str(needed)]
            call(*line, "--find-links", ".", "--output-file", "resolved.txt", cwd=needed.parent)


def main() -> None:
    """Rehearses, and prints what would be uploaded."""
    parser = argparse.ArgumentParser(prog="scripts/release --rehearse", description=__doc__)
    names = list(workspace.members())
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages to install; all")
    chosen = parser.parse_args().names or names
    with tempfile.TemporaryDirectory(prefix="dovetail-rehearsal-") as folder:
        root = Path(folder) / "clone"
        clone(root)
        tag(root)
        files = build(root)
        resolve(root)
        sessions = [f"bare-{p}({name})" for p in workspace.PYTHONS for name in chosen]
        line = [sys.executable, "-m", "nox", "--stop-on-first-error", "--sessions"]
        call(*line, *[f"build-{python}" for python in workspace.PYTHONS], *sessions, cwd=root)
        print(f"\nWould be uploaded, {len(files)} files:", flush=True)
        twine = ("uv", "tool", "run", "--constraints", "constraints/py312.txt", "twine")
        call(*twine, "check", "--strict", *files, cwd=root)


if __name__ == "__main__":
    main()
