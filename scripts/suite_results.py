# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results of suites on record: which versions they ran with, and the tests that passed.

A run of a suite with the environment variable SUITE_SET=pinned, floor or newest leaves a JSON
object in build/results/; the sessions of noxfile.py set it. A label is a claim about the
environment: `pinned` is refused where a version differs from constraints/. A partial run is not
recorded. A run narrowed by marks alone, or beside other members, counts for docs/features.md, and
not for docs/compatibility.md.

`scripts/tables.py` gathers these files, or the artifacts of a workflow, into RESULTS, one line for
each package, set, Python and marks.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
import workspace

SETS = ("floor", "pinned", "newest")
VARIABLE = "SUITE_SET"
FOLDER = Path("build/results")  # in the checkout; git ignores it
RESULTS = workspace.ROOT / "docs" / "results" / "suites.jsonl"
TOGETHER = "integration_tests"  # in place of a package
ALL = "not slow and not parity and not tpu and not triton"  # as in pyproject.toml
WHOLE = (ALL, f"{ALL} and not once")  # as in noxfile.py
COMPILED = ("jaxlib", "tensorstore")  # reported beside the declared dependencies

Line = dict[str, Any]


def title(package: str) -> str:
    """The name of a package, or of the suite of all, in a table."""
    return "several packages together" if package == TOGETHER else f"dovetail-{package}"


def as_columns(on: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of the table of features, as the option `on` of a marker gives one or several."""
    return (on,) if isinstance(on, str) else tuple(on)


def declared(package: str) -> dict[str, str]:
    """The requirements of a package and its extras: {"jax": ">=0.10.2"}, siblings left out.

    Args:
        package: A folder of packages/, or `TOGETHER` for the requirements of all.
    """
    everyone = workspace.members()
    chosen = everyone.values() if package == TOGETHER else [everyone[package]]
    texts = [r for m in chosen for extra in m.extras.values() for r in extra]
    needs = [d for m in chosen for d in m.dependencies] + [workspace.parse(t) for t in texts]
    ours = {m.name for m in everyone.values()} | {m.native for m in everyone.values()}
    return {n.name: n.specifier for n in sorted(needs, key=lambda n: n.name) if n.name not in ours}


def installed(package: str) -> dict[str, str]:
    """The installed versions of `declared` and `COMPILED`, without those that are missing."""
    versions = {}
    for name in (*declared(package), *COMPILED):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return dict(sorted(versions.items()))


def unpinned(versions: Mapping[str, str], python: str) -> list[str]:
    """The versions that differ from constraints/, as "jax 0.12.1 (pinned: 0.12.0.1)"."""
    pins = workspace.constraints(python)
    return [
        f"{name} {version} (pinned: {pins[name]})"
        for name, version in versions.items()
        if name in pins and pins[name] != version
    ]


def label(suite: str, which: str) -> str:
    """Checks the value of SUITE_SET in this environment. Returns the suite's package.

    Raises:
        ValueError: The set is unknown, or the environment is not the pinned one.
    """
    if which not in SETS:
        raise ValueError(
            f"{VARIABLE} must be one of {', '.join(SETS)}; got {which!r}; write {VARIABLE}=pinned"
        )
    package = suite if suite == TOGETHER else suite.split("/")[1]
    differing = unpinned(installed(package), _python()) if which == "pinned" else []
    if differing:
        raise ValueError(
            f"{VARIABLE}=pinned needs the versions of constraints/; got {', '.join(differing)}; "
            f"run 'nox -s tests-{_python()}', or write {VARIABLE}=newest"
        )
    return package


def write(
    package: str,
    which: str,
    *,
    marks: str,
    counts: Mapping[str, int],
    capabilities: Mapping[str, Mapping[str, Mapping[str, int]]],
    root: Path,
) -> Path:
    """Keeps the result of one run in place of an older one of the same kind. Returns its file.

    Args:
        package: A folder of packages/, or `TOGETHER`.
        which: One of `SETS`.
        marks: The value of pytest's -m.
        counts: Number of tests by outcome: "passed", "failed" and "skipped".
        capabilities: The same by name and column of the marker `capability`.
        root: The checkout.
    """
    line = {
        "package": package,
        "set": which,
        "python": _python(),
        "marks": "" if marks in WHOLE else marks,
        **counts,
        "date": time.strftime("%Y-%m-%d"),
        "commit": measure.commit(),
        "tree": _tree(package, root),
        "alone": not _strangers(package),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": installed(package),
        "declared": declared(package),
        "capabilities": capabilities,
    }
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join([package, which, f"py{_python()}", *re.findall(r"\w+", line["marks"])])
    file = folder / f"{name}.json"
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(line), encoding="utf-8")
    beside.replace(file)
    return file


def read(file: Path = RESULTS) -> list[Line]:
    """The lines on record."""
    if not file.exists():
        return []
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def gather(folders: Iterable[Path], file: Path = RESULTS) -> list[Line]:
    """Adds the results in `folders` to those on record. Returns all lines.

    A later run replaces an earlier one of the same package, set, Python, marks and solitude.
    """
    found = [json.loads(f.read_text(encoding="utf-8")) for d in folders for f in d.rglob("*.json")]
    lines = {_key(line): line for line in read(file)}
    for line in found:
        older = lines.get(_key(line))
        if older is None or older["date"] <= line["date"]:
            lines[_key(line)] = line
    ordered = [lines[key] for key in sorted(lines)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in ordered), encoding="utf-8")
    return ordered


def _key(line: Line) -> tuple[str, ...]:
    alone = "alone" if line["alone"] else "beside others"
    return line["package"], line["set"], line["python"], alone, line["marks"]


def _strangers(package: str) -> set[str]:
    """The members that are installed though the package declares no need of them."""
    everyone = workspace.members()
    if package == TOGETHER:
        return set()
    needed = workspace.needs(everyone[package], everyone.values())
    names = {distribution.name for distribution in importlib.metadata.distributions()}
    return names & {m.name for m in everyone.values()} - {m.name for m in needed}


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _tree(package: str, root: Path) -> str | None:
    """The git tree of the tested folder, which says what was tested after a rebase too."""
    folder = package if package == TOGETHER else f"packages/{package}"
    line = ["git", "rev-parse", "--short", f"HEAD:{folder}"]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
