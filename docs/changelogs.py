# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A changelog page per package: its CHANGELOG.md under the draft of its fragments."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/generated/changelogs"  # git ignores it
UNRELEASED = "Unreleased"


def write() -> None:
    """Writes a page for each package, and the list of them."""
    PAGES.mkdir(parents=True, exist_ok=True)
    packages = sorted(file.parent.name for file in ROOT.glob("packages/*/CHANGELOG.md"))
    for package in packages:
        (PAGES / f"{package}.md").write_text(page(ROOT / "packages" / package), encoding="utf-8")
    rows = "".join(f"- [dovetail-{name}](generated/changelogs/{name}.md)\n" for name in packages)
    pages = "\n".join(f"generated/changelogs/{name}" for name in packages)
    toctree = f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    (PAGES / "pages.txt").write_text(rows + toctree, encoding="utf-8")


def page(package: Path) -> str:
    """Returns the changelog of a package's folder, unreleased changes first."""
    config = package.parent.parent / "pyproject.toml"
    line = [sys.executable, "-m", "towncrier", "build", "--draft", "--dir", str(package)]
    line += ["--config", str(config), "--name", package.name, "--version", UNRELEASED]
    done = subprocess.run([*line, "--date", ""], check=True, capture_output=True, text=True)
    released = (package / "CHANGELOG.md").read_text(encoding="utf-8")
    _, _, versions = released.partition("\n")  # its title
    title = f"# dovetail-{package.name}: changes\n\n"
    return title + done.stdout.replace(f"{UNRELEASED} ()", UNRELEASED).strip() + "\n" + versions
