# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tracked files of a checkout, and the sources that a text reaches by imports.

Imports are found as names in the text, so a program in a string counts too. A library counts as a
whole, because its `__init__` imports most of it. The meta-package counts by modules, since its
recipes are imported one by one. A test that reads the repository has all of it as input.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import workspace

RECORD = ".ci/passed.jsonl"  # no input of any check
EVERYTHING = ""  # the prefix of every path
_NAME = re.compile(r"\bdovetail_([a-z]+)\b((?:\.\w+)*)")
_FROM = re.compile(r"from (dovetail_stack(?:\.\w+)*) import \(?([\w, \n]+)")
_MAIN = re.compile(r"-m\W+dovetail_stack\b(?!\.)")
_COMMAND = re.compile(r"""["'/]dovetail["' ]|^[ !]*(?:\$ )?dovetail """, re.MULTILINE)
_IMPORT = re.compile(r"^\s*(?:import|from) ([a-z_]+)", re.MULTILINE)
_READS_ALL = re.compile(
    r"\bROOT = |\bworkspace\b|\.parents\[|\.parent\.parent\b"
    r"|def \w+\([^)]*\b(?:frame|repository|checkout)\b"
)


class Tree:
    """The tracked files of a checkout.

    Args:
        root: The checkout.
    """

    def __init__(self, root: Path = workspace.ROOT) -> None:
        self.root = root
        names = subprocess.check_output(["git", "-C", str(root), "ls-files", "-z"], text=True)
        self.files = sorted(n for n in names.split("\0") if n and n != RECORD)
        self._all = frozenset(self.files)
        self.members = workspace.members(root)
        self.libraries = frozenset(self.members) - {workspace.META}
        self.settings = tomllib.loads(self.text("pyproject.toml"))["tool"]["dovetail"]
        self.text = functools.cache(self.text)
        self.digest = functools.cache(self.digest)
        self._named = functools.cache(self._named)
        self._of_stack = functools.cache(self._of_stack)
        self.constraints = functools.cache(lambda python: workspace.constraints(python, root))

    def text(self, path: str) -> str:
        """The content of a text file."""
        return (self.root / path).read_text(encoding="utf-8")

    def digest(self, path: str) -> str:
        """A hash of a file's content; that of nothing if it was deleted."""
        file = self.root / path
        return hashlib.sha256(file.read_bytes() if file.is_file() else b"").hexdigest()

    def matching(self, pattern: str) -> list[str]:
        """The files of a pattern, in which `*` also matches "/"."""
        return fnmatch.filter(self.files, pattern)

    def below(self, paths: Iterable[str]) -> set[str]:
        """The files that are in `paths`, or below their folders."""
        exact = {p for p in paths if p and not p.endswith("/")}
        folders = tuple(p for p in paths if not p or p.endswith("/"))
        return {f for f in self.files if f in exact or f.startswith(folders)}

    def reached(self, paths: Iterable[str]) -> set[str]:
        """`paths`, and the sources and scripts that their texts name, directly or indirectly."""
        known: set[str] = set()
        waiting = self.below(paths)
        while waiting:
            path = waiting.pop()
            known.add(path)
            # The meta-package itself imports no recipe; its docstring names them.
            own = not path.endswith("dovetail_stack/__init__.py")
            if own and path.endswith((".py", ".md", ".sh")):
                named = self._named(path)
                # A library as a whole names no sibling, so its files are not searched.
                known |= {p for p in named if not p.endswith(".py")}
                waiting |= named - known
        return known

    def _named(self, path: str) -> set[str]:
        text = self.text(path)
        if path.startswith("integration_tests/") and _READS_ALL.search(text):
            return {EVERYTHING}
        folders = ("scripts", "integration_tests")
        imported = {f"{folder}/{stem}.py" for stem in _IMPORT.findall(text) for folder in folders}
        named = (imported & self._all) - {"scripts/workspace.py"}
        mentions = _NAME.findall(text)
        named |= {f"packages/{folder}/src/" for folder, _ in mentions if folder in self.libraries}
        modules = [rest for folder, rest in mentions if folder == workspace.META]
        runs = not path.startswith(("scripts/", "packages/stack/src/"))  # not in a help text
        modules += [".cli"] if runs and _COMMAND.search(text) else []
        modules += [".__main__"] if _MAIN.search(text) else []
        for parent, names in _FROM.findall(text):
            under = parent.removeprefix("dovetail_stack")
            modules += [f"{under}.{name}" for name in re.findall(r"\w+", names)]
        return named.union(*map(self._of_stack, modules))

    def _of_stack(self, dotted: str) -> set[str]:
        """The file of a module such as ".recipes.text", or all files of a sub-package."""
        base = f"packages/{workspace.META}/src/dovetail_{workspace.META}"
        whole = f"{base}{dotted.replace('.', '/')}"
        below = {f for f in self._all if f.startswith(f"{whole}/") and f.endswith(".py")}
        return (below if dotted else set()) | ({f"{whole}.py", f"{base}/__init__.py"} & self._all)
