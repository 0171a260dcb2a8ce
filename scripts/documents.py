# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands and Python programs that the repository's READMEs print, in order.

`python scripts/documents.py [README ...]`, with the packages installed; without names, every README
and CONTRIBUTING.md. Each gets a directory of its own, which holds a copy of it. documents.toml
beside this file says what stands for a placeholder such as DIR, and which commands are not run, and
why.

A fenced block of `console` holds commands, the lines that begin with "$ ", and what they print:
lines that follow one must be its standard output, with "..." for any text. In a fenced block of
`sh` and in an indented block, every line is a command. A fenced block of `python` is a program.

An error is whatever a reader could stumble over, and whatever the walk would otherwise pass over in
silence: a command that fails or prints something else, a block of an unknown kind, a rule that fits
nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
RULES = Path(__file__).with_suffix(".toml")
LIMIT_S = 600  # of one command; only a hang takes so long
_FENCE = re.compile(r"^(```+|~~~+)([^\n]*)\n(.*?)^\1[ ]*$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n(?:\s*\n(?= {4}))?)+")
_DATA = ("json", "text", "toml")  # kinds of fenced blocks that nobody runs


class DocumentError(Exception):
    """A README and its rules do not fit, or something that it prints fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One command, without its comment, or one program.

    Args:
        kind: Commands are run by bash, programs by this Python.
        text: The command or program.
        output: What the README promises that a command prints; "" for no promise.
        place: Offset in the README.
    """

    kind: Literal["command", "program"]
    text: str
    output: str = ""
    place: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one README.

    Args:
        replace: Text that is printed, and the text that is run in its place, in this order.
            {stdlib} in it is the folder of Python's standard library.
        skip: Commands that are not run, each with the reason.
        output: Beginnings of indented blocks that show the output of a skipped command, each with
            the reason why nothing compares it.
    """

    replace: dict[str, str] = dataclasses.field(default_factory=dict)
    skip: dict[str, str] = dataclasses.field(default_factory=dict)
    output: dict[str, str] = dataclasses.field(default_factory=dict)


def blocks(text: str) -> list[Block]:
    """The commands and programs of a README in its order. DocumentError for an unknown kind."""
    found = []
    for match in _FENCE.finditer(text):
        kind, place = match[2].strip(), match.start()
        if kind == "python":
            found.append(Block(kind="program", text=match[3], place=place))
        elif kind == "console":
            found += _session(match[3], place)
        elif kind == "sh":
            found += _commands(match[3], place)
        elif kind not in _DATA:
            raise DocumentError(
                f"a fenced block is python, console, sh, {', '.join(_DATA)}; got {kind!r} before "
                f"{match[3].partition(chr(10))[0]!r}: say which it is"
            )
    outside = _FENCE.sub(lambda match: "\n" * len(match[0]), text)
    stray = re.search(r"^\s*(?:```|~~~).*", outside, re.MULTILINE)
    if stray:
        raise DocumentError(f"a fence is indented or has no end: {stray[0].strip()!r}")
    for match in _INDENTED.finditer(outside):
        found += _commands(match[0], match.start())
    return sorted(found, key=lambda block: block.place)


def _commands(text: str, place: int) -> list[Block]:
    """One command a line; a backslash at the end of a line goes on in the next."""
    lines = [re.sub(r"\s+# .*", "", line) for line in text.replace("\\\n", " ").splitlines()]
    return [
        Block(kind="command", text=line.strip(), place=place + i)
        for i, line in enumerate(lines)
        if line.strip()
    ]


def _session(text: str, place: int) -> list[Block]:
    """Commands after "$ ", each with the lines up to the next as its output."""
    before, *rest = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
    if before.strip() or not rest:
        raise DocumentError(
            f"a console block begins with a command after '$ '; got {text.partition(chr(10))[0]!r}"
        )
    found = []
    for i, part in enumerate(rest):
        line, _, output = part.partition("\n")
        (command,) = _commands(line, place + i)
        found.append(dataclasses.replace(command, output=output))
    return found


def rules_of(name: str, file: Path = RULES) -> Rules:
    """The rules of the README of that name; none if the file has none."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    unknown = [path for path in document if not (ROOT / path).is_file()]
    if unknown:
        raise DocumentError(f"{file.name} has rules for {unknown[0]!r}, no file; delete them")
    return Rules(**document.get(name, {}))


def planned(text: str, rules: Rules) -> list[Block]:
    """The blocks to run, as they run. DocumentError for a rule without use."""
    stale = []
    for first in rules.output:
        whole = [match for match in _INDENTED.finditer(text) if match[0].strip().startswith(first)]
        stale += [] if whole else [first]
        for match in whole:
            text = text.replace(match[0], "\n" * len(match[0]))
    everything = blocks(text)
    commands = [block.text for block in everything if block.kind == "command"]
    stale += [command for command in rules.skip if command not in commands]
    kept = [block for block in everything if block.text not in rules.skip]
    stale += [old for old in rules.replace if not any(old in block.text for block in kept)]
    if stale:
        raise DocumentError(f"nothing in the README fits the rule {stale[0]!r}; delete it")
    return [dataclasses.replace(block, text=_replaced(block.text, rules)) for block in kept]


def _replaced(text: str, rules: Rules) -> str:
    for old, new in rules.replace.items():
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
        DocumentError: The first one failed, or printed something else than the README says, or the
            rules do not fit.
    """
    shutil.copy(readme, folder / "README.md")
    count = 0
    for block in planned(readme.read_text(encoding="utf-8"), rules):
        if programs and block.kind == "command":
            continue
        is_command = block.kind == "command"
        shown = block.text if is_command else f"the program {block.text.splitlines()[0]!r} ..."
        print(f"{readme}: {shown}", flush=True)
        shell = ["bash", "-euo", "pipefail", "-c", block.text]
        line = shell if is_command else [sys.executable, "-c", block.text]
        code, printed, said = _run(line, folder)
        if code:
            raise DocumentError(f"{readme}: {shown}: exit code {code}\n{printed}{said}")
        if block.output and not _same(block.output, printed):
            raise DocumentError(
                f"{readme}: {shown}: the README says\n{block.output}and it printed\n{printed}"
            )
        count += 1
    return count


def _same(promised: str, printed: str) -> bool:
    want, got = promised.rstrip() + "\n", printed.rstrip() + "\n"
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def _run(line: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error. Whatever it started ends with it."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    # Files, not pipes: a child that outlives the command would hold a pipe open.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            line,
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=said,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise DocumentError(f"{line[-1]}: no end within {LIMIT_S} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        said.seek(0)
        return code, printed.read(), said.read()


def readmes() -> list[Path]:
    """The files that the walk covers."""
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
                rules = rules_of(name)
                count = walk(readme, rules, folder=Path(folder), programs=asked.programs)
                print(f"{name}: {count} blocks ran")
            except DocumentError as error:
                failures.append(name)
                print(error, file=sys.stderr)
    if failures:
        print(f"failed: {', '.join(failures)}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
