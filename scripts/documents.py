# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands and Python programs that the repository's READMEs print, in order.

`python scripts/documents.py [README ...]`, with the packages installed; without names, every README
and CONTRIBUTING.md. Each runs in a directory of its own, which holds a copy of it. documents.toml
beside this file says what stands for a placeholder such as DIR, and which commands are not run, and
why.

A fenced block of `console` holds commands, the lines that begin with "$ ", and their standard
output, with "..." for any text. In a fenced block of `sh` and in an indented block, every line is a
command. A fenced block of `python` is a program. A block of another kind and a rule that fits
nothing are errors, as a command that fails is.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RULES = Path(__file__).with_suffix(".toml")
LIMIT_S = 600  # of one command; only a hang takes so long
_FENCE = re.compile(r"^(```+|~~~+)([^\n]*)\n(.*?)^\1[ ]*$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n(?:\s*\n(?= {4}))?)+")
_DATA = ("json", "text", "toml")  # kinds of fenced blocks that nobody runs
Rules = Mapping[str, Mapping[str, str]]


class DocumentError(Exception):
    """A README and its rules do not fit, or something that it prints fails."""


class Block(NamedTuple):
    """One command, without its comment, or one program.

    Attributes:
        place: Offset in the README.
        text: The command, run by bash, or the program, run by this Python.
        is_command: Whether it is a command.
        output: What the README promises that a command prints; "" for no promise.
    """

    place: int
    text: str
    is_command: bool = True
    output: str = ""


def blocks(text: str) -> list[Block]:
    """Returns the commands and programs of a README in its order."""
    listed = []
    for match in _FENCE.finditer(text):
        kind, place = match[2].strip(), match.start()
        if kind == "python":
            listed.append(Block(place, match[3], is_command=False))
        elif kind == "console":
            listed += _session(match[3], place)
        elif kind == "sh":
            listed += _commands(match[3], place)
        elif kind not in _DATA:
            first = match[3].partition("\n")[0]
            raise DocumentError(f"a block is of no known kind; got {kind!r} before {first!r}")
    outside = _FENCE.sub(lambda match: "\n" * len(match[0]), text)
    if stray := re.search(r"^\s*(?:```|~~~).*", outside, re.MULTILINE):
        raise DocumentError(f"a fence is indented or has no end: {stray[0].strip()!r}")
    for match in _INDENTED.finditer(outside):
        listed += _commands(match[0], match.start())
    return sorted(listed)


def _commands(text: str, place: int) -> list[Block]:
    """One command a line; a backslash at the end of a line goes on in the next."""
    lines = [re.sub(r"\s+# .*", "", line) for line in text.replace("\\\n", " ").splitlines()]
    return [Block(place + i, line.strip()) for i, line in enumerate(lines) if line.strip()]


def _session(text: str, place: int) -> list[Block]:
    """Commands after "$ ", each with the lines up to the next as its output."""
    before, *rest = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
    if before.strip() or not rest:
        raise DocumentError(f"a console block begins with a command after '$ '; got {before!r}")
    listed = []
    for i, part in enumerate(rest):
        line, _, output = part.partition("\n")
        (command,) = _commands(line, place + i)
        listed.append(command._replace(output=output))
    return listed


def rules_of(name: str) -> Rules:
    """Returns the rules of a README: `skip` and `replace` of documents.toml."""
    document = tomllib.loads(RULES.read_text(encoding="utf-8"))
    if gone := [path for path in document if not (ROOT / path).is_file()]:
        raise DocumentError(f"{RULES.name} has rules for {gone[0]!r}, no file; delete them")
    return document.get(name, {})


def planned(text: str, rules: Rules) -> list[Block]:
    """Returns the blocks to run, as they run."""
    skip, replace = rules.get("skip", {}), rules.get("replace", {})
    everything = blocks(text)
    kept = [block for block in everything if block.text not in skip]
    stale = skip.keys() - {block.text for block in everything}
    stale |= {old for old in replace if not any(old in block.text for block in kept)}
    if stale:
        raise DocumentError(f"nothing in the README fits the rule {min(stale)!r}; delete it")
    return [block._replace(text=_replaced(block.text, replace)) for block in kept]


def _replaced(text: str, replace: Mapping[str, str]) -> str:
    for old, new in replace.items():
        text = text.replace(old, new.replace("{stdlib}", sysconfig.get_path("stdlib")))
    return text


def walk(readme: Path, rules: Rules, *, folder: Path, programs: bool = False) -> int:
    """Runs the commands and programs of a README as a reader's shell would.

    Args:
        readme: The file.
        rules: Its rules.
        folder: Where to run; the README is copied into it.
        programs: Run the programs alone.

    Returns:
        How many commands and programs ran.

    Raises:
        DocumentError: The first one failed, or printed something else than the README says.
    """
    shutil.copy(readme, folder / "README.md")
    wanted = planned(readme.read_text(encoding="utf-8"), rules)
    wanted = [block for block in wanted if not (programs and block.is_command)]
    for block in wanted:
        shown = f"{readme}: {block.text.strip().splitlines()[0]}"
        print(shown, flush=True)
        python, shell = [sys.executable, "-c"], ["bash", "-euo", "pipefail", "-c"]
        code, printed, errors = _run([*(shell if block.is_command else python), block.text], folder)
        if code:
            raise DocumentError(f"{shown}: exit code {code}\n{printed}{errors}")
        want, got = block.output.rstrip() + "\n", printed.rstrip() + "\n"
        same = doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)
        if block.output and not same:
            raise DocumentError(f"{shown}: the README says\n{want}and it printed\n{got}")
    return len(wanted)


def _run(line: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error. Whatever it started ends with it."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    # Files, not pipes: a child that outlives the command would hold a pipe open.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            line,
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        errors.seek(0)
        return code, printed.read(), errors.read()


def readmes() -> list[Path]:
    """Returns the files that the walk covers."""
    line = ["git", "-C", str(ROOT), "ls-files", "--", "README.md", "*/README.md", "CONTRIBUTING.md"]
    names = subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in names]


def main() -> int:
    """Walks the READMEs that were named, or all; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("readmes", nargs="*", type=Path, metavar="README")
    parser.add_argument("--programs", action="store_true", help="the Python programs alone")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failures = []
    for readme in [path.resolve() for path in asked.readmes] or readmes():
        name = readme.relative_to(ROOT).as_posix()
        with tempfile.TemporaryDirectory() as folder:
            try:
                count = walk(readme, rules_of(name), folder=Path(folder), programs=asked.programs)
                print(f"{name}: {count} blocks ran")
            except DocumentError as error:
                failures.append(name)
                print(error, file=sys.stderr)
    if failures:
        print(f"failed: {', '.join(failures)}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
