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
from workspace import Member


class Refusal(RuntimeError):
    """The release would publish something untrue; the message says what to do first."""


def git(*arguments: str) -> str:
    """Run git in the workspace and return what it prints."""
    line = ["git", "-C", str(workspace.ROOT), *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


def tag(member: Member, version: str) -> str:
    """The tag that the release workflow listens to."""
    return f"{member.folder}-v{version}"


def raised(member: Member, wanted: str) -> str:
    """The version after a major, minor or patch release, or `wanted` if that is a later one."""
    asked = ["--bump", wanted] if wanted in ("major", "minor", "patch") else [wanted]
    if not set(asked) & {"--bump"} and not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise Refusal(
            f"a version must be three numbers; got version={wanted!r}; "
            f"type major, minor, patch or one like {raised(member, 'patch')}"
        )
    version = uv_version(member.path, *asked, "--dry-run")
    if Version(version) <= Version(member.version):
        raise Refusal(
            f"a release must be later than the last one, {member.version}; got "
            f"version={wanted!r}; type patch for {raised(member, 'patch')}"
        )
    return version


def uv_version(folder: Path, *arguments: str) -> str:
    """Run `uv version` on a folder's pyproject.toml and return the version after it."""
    line = ["uv", "version", "--directory", str(folder), "--frozen", "--short", *arguments]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def by_calendar(version: str, today: datetime.date) -> str:
    """The meta-package's next version: `2026.11.0`, then `2026.11.1` in the same month."""
    last = Version(version)
    again = (last.major, last.minor) == (today.year, today.month)
    return f"{today.year}.{today.month}.{last.micro + 1 if again else 0}"


def check(member: Member, version: str, tags: set[str]) -> None:
    """Refuse what would publish a lie. Refusal names each thing to mend."""
    dirty = git("status", "--porcelain")
    if dirty:
        raise Refusal(f"the working tree must be clean; commit or put away first:\n{dirty}")
    if tag(member, version) in tags:
        raise Refusal(f"the tag {tag(member, version)} exists; choose a later version")
    wrong = workspace.false_pins()
    if wrong:
        raise Refusal(
            "the meta-package's pins must be true; mend packages/stack/pyproject.toml, or run "
            "scripts/constraints:\n" + "\n".join(wrong)
        )
    if not list((member.path / "changes").glob("*.*.md")):
        raise Refusal(
            f"there is nothing to release: packages/{member.folder}/changes holds no fragment; "
            "write one, ISSUE.feature.md or ISSUE.bugfix.md"
        )
    if member.folder == workspace.META:
        others = [m for m in workspace.members().values() if m.folder != workspace.META]
        missing = [m for m in others if tag(m, m.version) not in tags]
        if missing:
            lines = [
                f"{m.name} {m.version}: git tag {tag(m, m.version)} is missing; "
                f"run scripts/release {m.folder}"
                for m in missing
            ]
            raise Refusal("it would pin what was never released:\n" + "\n".join(lines))


def move_pin(member: Member, version: str) -> None:
    """Pin the new version in the meta-package; anything but one pin is our own mistake."""
    file = workspace.members()[workspace.META].path / "pyproject.toml"
    pin = rf'^(    "{re.escape(member.name)}(?:\[[^\]]*\])?==){re.escape(member.version)}"'
    before = file.read_text(encoding="utf-8")
    text, count = re.subn(pin, rf'\g<1>{version}"', before, flags=re.MULTILINE)
    assert count == 1, f"{file}: {count} lines match {pin}"
    file.write_text(text, encoding="utf-8")


def release(member: Member, version: str) -> None:
    """Write, commit and tag. On a failure the tree is as it was."""
    try:
        uv_version(member.path, version)
        if member.native:
            uv_version(member.path / "native", version)
        if member.folder != workspace.META:
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
    """Parse the command line, check, release, and say how to publish."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("name", choices=sorted(workspace.members()), help="a folder of packages/")
    parser.add_argument("version", nargs="?", help="major, minor, patch or X.Y.Z; not for stack")
    options = parser.parse_args()
    member = workspace.members()[options.name]
    if options.name == workspace.META and options.version is None:
        version = by_calendar(member.version, datetime.date.today())
    elif options.version is None:
        raise Refusal(
            f"a library's release must say how much it changes; {member.name} is at "
            f"{member.version}; type scripts/release {options.name} patch, minor or major"
        )
    else:
        version = raised(member, options.version)
    check(member, version, set(git("tag", "--list").split()))
    release(member, version)
    print(f"{tag(member, version)} is committed and tagged here. Publish it with:")
    print(f"    git push origin HEAD {tag(member, version)}")


if __name__ == "__main__":
    try:
        main()
    except Refusal as error:
        sys.exit(f"scripts/release: refused: {error}")
