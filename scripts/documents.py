# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs what the repository's READMEs print: every command and every Python program, in order.

`python scripts/documents.py [README ...]`, with the packages installed. Each README gets a
directory of its own, which holds a copy of it. documents.toml beside this file says what stands for
a placeholder such as DIR, and which commands are not run, and why. A rule that fits nothing is an
error, and so is a command that fails.

Commands are the lines that begin with "$ " in a fenced block of `console`, and those of an indented
block that begin with a file of the checkout. Programs are fenced blocks of `python`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
RULES = Path(__file__).with_suffix(".toml")
LIMIT_S = 600  # of one command; only a hang takes so long
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^    (\S+/\S+.*)$", re.MULTILINE)


class DocumentError(Exception):
    """A README and its rules do not fit, or something that it prints fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One command, without its comment, or one program, in the order of the README."""

    kind: Literal["command", "program"]
    text: str
    place: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one README.

    Args:
        replace: Text that is printed, and the text that is run in its place, in this order.
        skip: Commands that are not run, each with the reason.
    """

    replace: dict[str, str] = dataclasses.field(default_factory=dict)
    skip: dict[str, str] = dataclasses.field(default_factory=dict)


def blocks(text: str) -> list[Block]:
    """What a reader would run."""
    found = []
    for match in _FENCE.finditer(text):
        if match[1] == "python":
            found.append(Block(kind="program", text=match[2], place=match.start()))
        elif match[1] == "console":
            lines = [line[2:] for line in match[2].splitlines() if line.startswith("$ ")]
            found += [_command(line, match.start() + i) for i, line in enumerate(lines)]
    outside = _FENCE.sub(lambda match: " " * len(match[0]), text)
    found += [
        _command(match[1], match.start())
        for match in _INDENTED.finditer(outside)
        if (ROOT / match[1].split()[0]).is_file()
    ]
    return sorted(found, key=lambda block: block.place)


def _command(line: str, place: int) -> Block:
    return Block(kind="command", text=re.sub(r"\s+# .*", "", line).strip(), place=place)


def rules_of(name: str, file: Path = RULES) -> Rules:
    """The rules of the README of that name; none if the file has none."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    unknown = [path for path in document if not (ROOT / path).is_file()]
    if unknown:
        raise DocumentError(f"{file.name} has rules for {unknown[0]!r}, no file; delete them")
    return Rules(**document.get(name, {}))


def planned(text: str, rules: Rules) -> Iterator[tuple[Block, str]]:
    """Each block to run, with the text that runs. DocumentError for a rule without use."""
    everything = blocks(text)
    commands = [block.text for block in everything if block.kind == "command"]
    stale = [command for command in rules.skip if command not in commands]
    kept = [block for block in everything if block.text not in rules.skip]
    stale += [old for old in rules.replace if not any(old in block.text for block in kept)]
    if stale:
        raise DocumentError(f"no command of the README has {stale[0]!r}; delete its rule")
    for block in kept:
        run = block.text
        for old, new in rules.replace.items():
            run = run.replace(old, new.format(stdlib=sysconfig.get_paths()["stdlib"]))
        yield block, run


def walk(readme: Path, rules: Rules, *, folder: Path) -> int:
    """Runs what a README prints, in `folder`; how many blocks that were."""
    shutil.copy(readme, folder / "README.md")
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    count = 0
    for block, text in planned(readme.read_text(encoding="utf-8"), rules):
        line = [sys.executable, "-c", text] if block.kind == "program" else shlex.split(text)
        shown = text if block.kind == "command" else f"the program {text.splitlines()[0]!r} ..."
        print(f"{readme}: {shown}", flush=True)
        try:
            done = subprocess.run(
                line,
                cwd=folder,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise DocumentError(f"{readme}: {shown}: no such command: {error.filename}") from None
        if done.returncode:
            raise DocumentError(f"{readme}: {shown}: exit code {done.returncode}\n{done.stdout}")
        count += 1
    return count


def main() -> int:
    """Walks the READMEs that were named, or all; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("readmes", nargs="*", type=Path, metavar="README")
    parser.add_argument("--programs", action="store_true", help="the Python programs alone")
    asked = parser.parse_args()
    everything = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
    failures = []
    for readme in [path.resolve() for path in asked.readmes] or everything:
        name = readme.relative_to(ROOT).as_posix()
        with tempfile.TemporaryDirectory() as folder:
            try:
                rules = rules_of(name)
                if asked.programs:
                    text = readme.read_text(encoding="utf-8")
                    commands = {b.text: "" for b in blocks(text) if b.kind == "command"}
                    rules = Rules(skip=commands)
                count = walk(readme, rules, folder=Path(folder))
                print(f"{name}: {count} blocks ran")
            except DocumentError as error:
                failures.append(name)
                print(error, file=sys.stderr)
    if failures:
        print(f"failed: {', '.join(failures)}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
