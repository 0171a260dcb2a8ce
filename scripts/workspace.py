# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the workspace holds: its members, their versions, and the meta-package's pins of them.

Read from the files alone, with the standard library alone, so that set-up, nox, the release tool
and the tests share one answer before anything is installed.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
META = "stack"  # the folder of the meta-package, the only member that pins
PYTHONS = ("3.11", "3.12")
# As in pyproject.toml.
USUAL_TESTS = "not slow and not parity and not tpu and not gpu and not triton"
NEWER = ("3.13",)  # takes the constraints of 3.12; the test workflow runs it

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*?)\s*(?:;\s*(.*))?$")
_WHOLLY_THOROUGH = re.compile(r"^pytestmark = .*\bthorough\b", re.MULTILINE)
_LOWER_BOUND = re.compile(r">=[0-9][0-9.]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Requirement:
    """One dependency: `name[extras]specifier; marker`."""

    name: str
    extras: tuple[str, ...] = ()
    specifier: str = ""
    marker: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One folder of packages/, as its pyproject.toml describes it.

    native: the distribution that its folder `native` builds from source that must be compiled. It
    is an extra of the member, and not a member.
    """

    folder: str
    path: Path
    name: str
    version: str
    dependencies: tuple[Requirement, ...]
    extras: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]
    native: str | None = None

    @property
    def module(self) -> str:
        """The package it installs: `dovetail_data` for dovetail-data."""
        return self.name.replace("-", "_")

    @property
    def development_extras(self) -> list[str]:
        """The extras for tests: without the native wheel, which needs a compiler, without libtpu,
        which every process of JAX would try, and without those of the meta-package, which install
        what an accelerator needs."""
        if self.folder == META:
            return []
        apart = {self.native, "libtpu"}
        known = {extra: {parse(n).name for n in needs} for extra, needs in self.extras.items()}
        return sorted(extra for extra, names in known.items() if not names & apart)

    def editable(self) -> str:
        """What to give to `pip install -e`: the folder with its extras for tests."""
        wanted = ",".join(self.development_extras)
        return f"{self.path}[{wanted}]" if wanted else str(self.path)


def parse(requirement: str) -> Requirement:
    """Split one PEP 508 requirement. ValueError for one that has a URL or cannot be read."""
    match = _REQUIREMENT.match(requirement)
    if match is None or "@" in requirement:
        raise ValueError(
            f"a dependency must be a name, extras, a version specifier and a marker; got "
            f"requirement={requirement!r}; write it as 'name[extra]>=1.2; marker'"
        )
    name, extras, specifier, marker = match.groups()
    split = tuple(e.strip() for e in extras.split(",")) if extras else ()
    name = re.sub(r"[-_.]+", "-", name).lower()
    return Requirement(name=name, extras=split, specifier=specifier, marker=marker or "")


def members(root: Path = ROOT) -> dict[str, Member]:
    """All members by folder name, in alphabetical order."""
    found = {}
    for file in sorted(root.glob("packages/*/pyproject.toml")):
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        project = document["project"]
        found[file.parent.name] = Member(
            folder=file.parent.name,
            path=file.parent,
            name=project["name"],
            version=project["version"],
            dependencies=tuple(parse(d) for d in project["dependencies"]),
            extras={k: tuple(v) for k, v in project.get("optional-dependencies", {}).items()},
            groups={k: tuple(v) for k, v in document.get("dependency-groups", {}).items()},
            native=_native(file.parent / "native" / "pyproject.toml"),
        )
    return found


def _native(file: Path) -> str | None:
    if not file.exists():
        return None
    return tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]


def url(root: Path = ROOT) -> str:
    """The address of the repository; "" before it has one."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return document["tool"]["dovetail"]["url"]


def needs(member: Member, everyone: Iterable[Member]) -> list[Member]:
    """`member` and the members that it depends on: what its own environment may hold of us."""
    wanted = {d.name for d in member.dependencies} | {member.name}
    return [m for m in everyone if m.name in wanted]


def false_pins(root: Path = ROOT) -> list[str]:
    """Where the meta-package's pins lie, one sentence each; empty when it is honest.

    Each member must be pinned to the version in its own pyproject.toml (a workspace ignores the
    specifiers of its members, so nothing else would notice), and every other pin must be what
    constraints/ was tested with. What only the command needs may have a lower bound instead.
    """
    from packaging.markers import Marker  # nox and the tests have it, a bare Python has not

    everyone = members(root)
    versions = {m.name: m.version for m in everyone.values() if m.folder != META}
    pins = [d for d in everyone[META].dependencies if not _LOWER_BOUND.fullmatch(d.specifier)]
    wrong = []
    found = {p.name: p.specifier for p in pins}
    for name, version in versions.items():
        if found.get(name) != f"=={version}":
            wrong.append(f"{name} is {version}, but {META} pins {found.get(name, 'nothing')}")
    for python in PYTHONS:
        tested = constraints(python, root)
        for pin in pins:
            if pin.marker and not Marker(pin.marker).evaluate({"python_version": python}):
                continue
            if pin.name not in versions and pin.specifier != f"=={tested.get(pin.name)}":
                wrong.append(
                    f"{pin.name} is constrained to {tested.get(pin.name)} on Python {python}, "
                    f"but {META} pins {pin.specifier or 'nothing'}"
                )
    return wrong


def constraints_file(python: str, root: Path = ROOT) -> Path:
    """The tested set for a Python: later ones than 3.12 share its file."""
    known = python if python in PYTHONS else PYTHONS[-1]
    return root / "constraints" / f"py{known.replace('.', '')}.txt"


def constraints(python: str, root: Path = ROOT) -> dict[str, str]:
    """The tested version of each distribution on one Python."""
    lines = constraints_file(python, root).read_text(encoding="utf-8").splitlines()
    parsed = [parse(line) for line in lines if line and not line.startswith("#")]
    return {r.name: r.specifier.removeprefix("==") for r in parsed}


def wholly_thorough(source: str) -> bool:
    """Whether no test of a file with this text is in the fast tier."""
    return _WHOLLY_THOROUGH.search(source) is not None
