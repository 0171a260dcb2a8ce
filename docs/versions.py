# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of versions: the meta-package's pins, and each library's lower bounds."""

from pathlib import Path

import install

import workspace

TABLES = Path(__file__).resolve().parent / "generated/versions"  # git ignores it


def write() -> None:
    """Writes both tables."""
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / "pins.txt").write_text(pins(), encoding="utf-8")
    (TABLES / "floors.txt").write_text(floors(), encoding="utf-8")


def pins() -> str:
    """Returns the versions that the meta-package installs, per Python."""
    members = workspace.members()
    versions = {m.name: m.version for m in members.values()}
    sets = [workspace.constraints(python) for python in workspace.PYTHONS]
    needs = [d for d in members[workspace.META].dependencies if d.specifier.startswith("==")]
    names = dict.fromkeys(d.name for d in needs)
    rows = [(f"`{n}`", *(versions.get(n) or tested[n] for tested in sets)) for n in names]
    return install.table(("distribution", "Python 3.11", "Python 3.12 and later"), rows)


def floors() -> str:
    """Returns what each library alone requires: its direct dependencies and lower bounds."""
    libraries = [m for m in workspace.members().values() if m.folder != workspace.META]
    rows = [
        (f"`{m.name}` {m.version}", ", ".join(f"{d.name} {d.specifier}" for d in m.dependencies))
        for m in libraries
    ]
    return install.table(("package", "requires"), rows)
