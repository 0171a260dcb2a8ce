# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Release one package: raise its version, write its changelog, move its pin, commit and tag.

uv raises the version, towncrier writes the changelog, and the metadata get the project's address. A
native wheel has the version and the tag of its package.

A library's new version is also the meta-package's new pin, in the same commit, so that the pins of
every commit are true. The meta-package itself is released by calendar (YEAR.MONTH.N), and only when
each member that it pins has been released: its pins are a promise of what can be installed.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

import documents
import workspace
from workspace import META, Member


def run(*line: str) -> str:
    """Returns the standard output of a command, run in the workspace, that must succeed."""
    return subprocess.check_output(line, cwd=workspace.ROOT, text=True).strip()


def tag(member: Member, version: str) -> str:
    """Returns the tag that the release workflow listens to."""
    return f"{member.folder}-v{version}"


def by_calendar(version: str, today: datetime.date) -> str:
    """Returns the meta-package's next version: `2026.11.0`, then `2026.11.1` in the same month."""
    year, month, number = map(int, version.split("."))
    again = (year, month) == (today.year, today.month)
    return f"{today.year}.{today.month}.{number + 1 if again else 0}"


def refusal(member: Member) -> str:
    """Returns the reason against a release, and the thing to do first; "" if there is none."""
    if dirty := run("git", "status", "--porcelain"):
        return f"the working tree must be clean; commit or put away first:\n{dirty}"
    if not workspace.url():
        return (
            "a wheel must name its project's address (Project-URL), got [tool.dovetail] url='' in "
            "pyproject.toml; write the repository's address there, and commit"
        )
    if wrong := documents.empty_tables():
        return "a table must have rows, and a column a cell; fill or delete\n" + "\n".join(wrong)
    if wrong := workspace.false_pins():
        return "the meta-package's pins must be true:\n" + "\n".join(wrong)
    if not list((member.path / "changes").glob("*.*.md")):
        return f"packages/{member.folder}/changes has no fragment, such as ISSUE.feature.md"
    others = [m for m in workspace.members().values() if member.folder == META != m.folder]
    tags = run("git", "tag", "--list").split()
    if missing := [m.folder for m in others if tag(m, m.version) not in tags]:
        return f"it would pin versions without a tag; release these first: {' '.join(missing)}"
    return ""


def rewrite(file: Path, pattern: str, new: str) -> None:
    """Replaces the first match of a pattern in a file."""
    text = re.sub(pattern, new, file.read_text(encoding="utf-8"), count=1)
    file.write_text(text, encoding="utf-8")


def release(member: Member, *wanted: str) -> str:
    """Writes, commits and tags a release.

    Args:
        member: The package.
        wanted: Arguments of `uv version`: the version, or the number to raise.

    Returns:
        The tag.
    """
    version = ""
    for folder in [member.path, *([member.path / "native"] if member.native else [])]:
        line = ("uv", "version", "--directory", str(folder), "--frozen", "--short")
        version = run(*line, *wanted)
        urls = rf'\1urls = {{ Repository = "{workspace.url()}" }}\n'
        rewrite(folder / "pyproject.toml", r"(?m)^(version = .*\n)(?:urls = .*\n)?", urls)
    file = workspace.members()[META].path / "pyproject.toml"
    pin = rf'("{re.escape(member.name)}(?:\[.*?\])?==){re.escape(member.version)}"'
    rewrite(file, pin, rf'\g<1>{version}"')
    line = ("towncrier", "build", "--yes", "--config", "pyproject.toml", "--dir", str(member.path))
    run(*line, "--name", member.name, "--version", version)
    (member.path / "changes").mkdir(exist_ok=True)
    (member.path / "changes" / ".gitkeep").touch()  # git drops a folder without files
    run("git", "add", "--all", "packages")
    run("git", "commit", "--quiet", "--message", f"Release {member.name} {version}")
    name = tag(member, version)
    run("git", "tag", "--annotate", name, "--message", f"{member.name} {version}")
    return name


def main() -> None:
    """Checks, releases, and says how to publish."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("name", choices=sorted(workspace.members()), help="a folder of packages/")
    numbers = ("major", "minor", "patch")
    parser.add_argument("number", choices=numbers, nargs="?", help="to raise; not for stack")
    options = parser.parse_args()
    member = workspace.members()[options.name]
    if (member.folder == META) != (options.number is None):
        parser.error(f"a library needs one of {', '.join(numbers)}; {META} has none")
    if reason := refusal(member):
        sys.exit(f"scripts/release: refused: {reason}")
    if member.folder == META:
        name = release(member, by_calendar(member.version, datetime.date.today()))
    else:
        name = release(member, "--bump", options.number)
    print(f"{name} is committed and tagged here. Publish it with:")
    print(f"    git push origin HEAD {name}")


if __name__ == "__main__":
    main()
