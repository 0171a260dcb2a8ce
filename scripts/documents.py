# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands and Python programs that the repository's READMEs print, in order.

`python scripts/documents.py [README ...]`, with the packages installed; without names, every README
and CONTRIBUTING.md. Each runs in a directory of its own, which holds a copy of it. documents.toml
beside this file has replacements for placeholders such as DIR, and the commands not run, with the
reason.

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
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from workspace import ROOT

RULES = Path(__file__).with_suffix(".toml")
PAGES = ("*.md", "packages/**/README.md", "docs/**/*.md", "docs/generated/**/*.txt")
LIMIT_S = 1800  # of one command; only a hang takes so long
_BLOCK = re.compile(
    r"^```([^\n`]*)\n(.*?)^```$|(?<=\n\n)((?: {4}[^\n]+\n)+)", re.DOTALL | re.MULTILINE
)
_TABLE = re.compile(r"^(\|.*\|)\n\|[-: |]+\|\n?((?:\|.*\|\n?)*)", re.MULTILINE)
_DATA = ("json", "text", "toml")  # kinds of fenced blocks that nobody runs
Rules = Mapping[str, Mapping[str, str]]


class DocumentError(Exception):
    """A README and its rules do not fit, or one of its commands fails."""


class Block(NamedTuple):
    """One command, without its comment, or one program; `output` is "" where none is printed."""

    text: str
    is_command: bool = True
    output: str = ""


def blocks(text: str) -> list[Block]:
    """Returns the commands and programs of a README in its order."""
    listed = []
    matches = list(_BLOCK.finditer(text))
    if text.count("```") != 2 * sum(match[3] is None for match in matches):
        raise DocumentError("a fence must start its line and have an end")
    for kind, fenced, indented in (match.groups() for match in matches):
        if kind in ("python", "{code-cell} python"):
            listed.append(Block(fenced, is_command=False))
        elif kind == "console":
            for entry in re.split(r"^\$ ", fenced.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
                line, _, output = entry.partition("\n")
                listed += [command._replace(output=output) for command in _commands(line)]
        elif kind == "sh" or indented:
            listed += _commands(fenced or indented)
        elif kind not in _DATA and not kind.startswith("{"):
            raise DocumentError(f"a block is of no known kind; got {kind!r} before {fenced[:80]!r}")
    return listed


def _commands(text: str) -> list[Block]:
    """One command a line; a backslash at the end of a line goes on in the next."""
    lines = [re.sub(r"\s+# .*", "", line) for line in text.replace("\\\n", " ").splitlines()]
    return [Block(line.strip()) for line in lines if line.strip()]


def planned(text: str, rules: Rules) -> list[Block]:
    """Returns the blocks to run, with their placeholders replaced."""
    skip, replace = rules.get("skip", {}), rules.get("replace", {})
    everything = blocks(text)
    kept = [block for block in everything if block.text not in skip]
    stale = skip.keys() - {block.text for block in everything}
    stale |= {old for old in replace if not any(old in block.text for block in kept)}
    if stale:
        raise DocumentError(f"nothing in the README fits the rule {min(stale)!r}; delete it")
    for old, new in replace.items():
        kept = [block._replace(text=block.text.replace(old, new)) for block in kept]
    return kept


def walk(
    readme: Path, rules: Rules, *, folder: Path, programs: bool = False, clone: bool = False
) -> int:
    """Runs the commands and programs of a README as a reader's shell would.

    Args:
        readme: The file.
        rules: Its rules: `skip` and `replace` of documents.toml.
        folder: The current directory; the README is copied into it.
        programs: Run the programs alone.
        clone: The folder is a clone: commands find what is on PATH, and programs its .venv.

    Returns:
        Number of commands and programs that ran.

    Raises:
        DocumentError: The first one failed, or its output is not that of the README.
    """
    own = folder / ".venv/bin/python" if clone else Path(sys.executable)
    path = os.environ["PATH"]
    if not clone:
        shutil.copy(readme, folder / "README.md")
        path = f"{own.parent}{os.pathsep}{path}"
    wanted = planned(readme.read_text(encoding="utf-8"), rules)
    wanted = [block for block in wanted if not (programs and block.is_command)]
    for block in wanted:
        shown = f"{readme}: {block.text.strip().splitlines()[0]}"
        print(shown, flush=True)
        python, shell = [str(own), "-c"], ["bash", "-euo", "pipefail", "-c"]
        code, printed = _run([*(shell if block.is_command else python), block.text], folder, path)
        if code:
            raise DocumentError(f"{shown}: exit code {code}\n{printed}")
        want, got = block.output.rstrip() + "\n", printed.rstrip() + "\n"
        same = doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)
        if block.output and not same:
            raise DocumentError(f"{shown}: the README says\n{want}and it printed\n{got}")
    return len(wanted)


def _run(line: list[str], folder: Path, path: str) -> tuple[int, str]:
    """Returns exit code and standard output. Processes left behind are killed."""
    # A file, not a pipe: a child that outlives the command would hold a pipe open.
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            line,
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        return code, printed.read()


def readmes() -> list[Path]:
    """Returns every README, and CONTRIBUTING.md."""
    line = ["git", "-C", str(ROOT), "ls-files", "--", "README.md", "*/README.md", "CONTRIBUTING.md"]
    names = subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in names]


def empty_tables(root: Path = ROOT) -> list[str]:
    """Returns `page: head` of each table without a row, or with a column of empty cells.

    Pages are READMEs and those of the site, with what its build generates.
    """
    wrong = []
    for file in sorted(file for pattern in PAGES for file in root.glob(pattern)):
        text = re.sub(r"<!--.*?-->", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        for head, body in _TABLE.findall(re.sub(r"(?ms)^```.*?^```$", "", text)):
            rows = [re.split(r"(?<!\\)\|", row[1:-1]) for row in body.splitlines()]
            if not rows or not all("".join(column).strip() for column in zip(*rows, strict=False)):
                wrong.append(f"{file.relative_to(root)}: {head}")
    return wrong


def main() -> int:
    """Walks the READMEs that were named, or all; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("readmes", nargs="*", type=Path, metavar="README")
    parser.add_argument("--programs", action="store_true", help="the Python programs alone")
    parser.add_argument("--clone", type=Path, metavar="DIR", help="run there, and skip nothing")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))
    failed = False
    for readme in [path.resolve() for path in asked.readmes] or readmes():
        of_readme = rules.get(readme.relative_to(ROOT).as_posix(), {})
        if asked.clone:
            of_readme = {"replace": of_readme.get("clone", {})}
        with tempfile.TemporaryDirectory() as temporary:
            folder, clone = asked.clone or Path(temporary), bool(asked.clone)
            try:
                count = walk(readme, of_readme, folder=folder, programs=asked.programs, clone=clone)
                print(f"{readme}: {count} blocks ran")
            except DocumentError as error:
                failed = True
                print(error, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
