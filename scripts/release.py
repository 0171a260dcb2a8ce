# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Release one package: raise its version, write its changelog, move its pin, commit and tag.

uv raises the version, and towncrier writes the changelog. A native wheel has the version and the
tag of its package.

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

from packaging.version import Version

import workspace
from workspace import META, Member


class Refusal(RuntimeError):
    """The release would publish something untrue; the message says what to do first."""


def run(*line: str | Path) -> str:
    """Returns the standard output of a command that must succeed."""
    done = subprocess.run(list(map(str, line)), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def git(*arguments: str) -> str:
    """Returns the output of git in the workspace."""
    return run("git", "-C", workspace.ROOT, *arguments)


def tag(member: Member, version: str) -> str:
    """Returns the tag that the release workflow listens to."""
    return f"{member.folder}-v{version}"


def set_version(folder: Path, *arguments: str) -> str:
    """Runs `uv version` on a folder's pyproject.toml and returns the version after it."""
    return run("uv", "version", "--directory", folder, "--frozen", "--short", *arguments)


def next_version(member: Member, wanted: str | None) -> str:
    """Returns the version to release.

    Args:
        member: The package.
        wanted: "major", "minor", "patch" or the version itself; None for the calendar's.
    """
    if wanted is None and member.folder == META:
        return by_calendar(member.version, datetime.date.today())
    if wanted in ("major", "minor", "patch"):
        return set_version(member.path, "--bump", wanted, "--dry-run")
    numbers = re.fullmatch(r"\d+\.\d+\.\d+", wanted or "")
    if wanted and numbers and Version(wanted) > Version(member.version):
        return wanted
    raise Refusal(
        f"a version must be major, minor, patch or three numbers later than {member.version}; got "
        f"version={wanted!r}; type scripts/release {member.folder} patch"
    )


def by_calendar(version: str, today: datetime.date) -> str:
    """Returns the meta-package's next version: `2026.11.0`, then `2026.11.1` in the same month."""
    last = Version(version)
    again = (last.major, last.minor) == (today.year, today.month)
    return f"{today.year}.{today.month}.{last.micro + 1 if again else 0}"


def check(member: Member, version: str) -> None:
    """Refuses to publish a lie, and names each thing to mend."""
    if dirty := git("status", "--porcelain"):
        raise Refusal(f"the working tree must be clean; commit or put away first:\n{dirty}")
    tags = git("tag", "--list").split()
    if tag(member, version) in tags:
        raise Refusal(f"the tag {tag(member, version)} exists; choose a later version")
    if wrong := workspace.false_pins():
        raise Refusal(
            "the meta-package's pins must be true; mend packages/stack/pyproject.toml, or run "
            "scripts/constraints:\n" + "\n".join(wrong)
        )
    if not list((member.path / "changes").glob("*.*.md")):
        raise Refusal(
            f"there is nothing to release: packages/{member.folder}/changes holds no fragment; "
            "write one, ISSUE.feature.md or ISSUE.bugfix.md"
        )
    others = [m for m in workspace.members().values() if member.folder == META != m.folder]
    if missing := [m.folder for m in others if tag(m, m.version) not in tags]:
        lines = "".join(f"\nscripts/release {folder}" for folder in missing)
        raise Refusal(f"it would pin versions without a tag; release these first:{lines}")


def move_pin(member: Member, version: str) -> None:
    """Pins the new version in the meta-package."""
    file = workspace.members()[META].path / "pyproject.toml"
    pin = rf'^(    "{re.escape(member.name)}(?:\[[^\]]*\])?==){re.escape(member.version)}"'
    before = file.read_text(encoding="utf-8")
    text = re.sub(pin, rf'\g<1>{version}"', before, flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")


def release(member: Member, version: str) -> None:
    """Writes, commits and tags. On a failure the tree is as it was."""
    try:
        for folder in [member.path, *([member.path / "native"] if member.native else [])]:
            set_version(folder, version)
        if member.folder != META:
            move_pin(member, version)
        line = ["towncrier", "build", "--yes", "--dir", str(member.path), "--version", version]
        line += ["--name", member.name, "--config", str(workspace.ROOT / "pyproject.toml")]
        subprocess.run(line, cwd=workspace.ROOT, check=True, stdout=sys.stderr)  # git add, by cwd
        keep = member.path / "changes" / ".gitkeep"  # git drops a folder without files
        keep.parent.mkdir(exist_ok=True)
        keep.touch()
        assert not workspace.false_pins(), workspace.false_pins()
        git("add", "--all", "packages")
        git("commit", "--quiet", "--message", f"Release {member.name} {version}")
        git("tag", "--annotate", tag(member, version), "--message", f"{member.name} {version}")
    except BaseException:
        git("restore", "--staged", "--worktree", "--source", "HEAD", "packages")
        raise


def main() -> None:
    """Checks, releases, and says how to publish."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("name", choices=sorted(workspace.members()), help="a folder of packages/")
    parser.add_argument("version", nargs="?", help="major, minor, patch or X.Y.Z; not for stack")
    options = parser.parse_args()
    member = workspace.members()[options.name]
    version = next_version(member, options.version)
    check(member, version)
    release(member, version)
    print(f"{tag(member, version)} is committed and tagged here. Publish it with:")
    print(f"    git push origin HEAD {tag(member, version)}")


if __name__ == "__main__":
    try:
        main()
    except Refusal as error:
        sys.exit(f"scripts/release: refused: {error}")
