# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rehearse a release of everything, from the commit at hand, in a throw-away clone.

The clone is tagged as scripts/release would tag it: each package with fragments by a minor version,
the meta-package by calendar. All is built from there. The wheels lie in one folder, which serves as
the index: each package is installed from it alone, in a fresh environment of each Python, and runs
the programs of its README there. The meta-package also runs two notebooks. The last lines list
what would be uploaded. Nothing leaves this machine, and the repository stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import artifacts
import workspace
from workspace import Member

NOTEBOOKS = ("language_model", "damage_and_resume")
# What a notebook needs beside the packages: its plots, and a kernel that runs it.
FOR_NOTEBOOKS = ("ipykernel", "matplotlib", "nbclient")
EXTRAS = ("", "cpu", "cuda12", "cuda13", "ray", "tpu")
PYTHONS = (*workspace.PYTHONS, *workspace.NEWER)


class RehearsalError(RuntimeError):
    """A step of the rehearsal failed; the message has its command and its output."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Where a rehearsal happens.

    Attributes:
        root: The clone.
        dist: Folder of the built files, the index of the installations.
        work: Folder of the environments, and of what programs write.
    """

    root: Path
    dist: Path
    work: Path

    def members(self) -> dict[str, Member]:
        """The members of the clone, with the versions of the rehearsed release."""
        return workspace.members(self.root)


def call(*line: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Run a command and return its standard output. RehearsalError with all output if it fails."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)  # nothing may be found beside the sources
    texts = list(map(str, line))
    done = subprocess.run(
        texts, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RehearsalError(
            f"each step must succeed; got exit code {done.returncode} of {' '.join(texts)}\n"
            f"{done.stdout}{done.stderr}"
            "mend it, commit, and rehearse again; --only NAME rehearses one package"
        )
    return done.stdout


@contextlib.contextmanager
def timed(step: str) -> Iterator[None]:
    """Print the step and its seconds."""
    print(f"{step} ...", end="", flush=True)
    start = time.monotonic()
    yield
    print(f" {time.monotonic() - start:.1f} s", flush=True)


def clone(folder: Path, root: Path = workspace.ROOT) -> Rehearsal:
    """Clone the commit at hand, with its tags and with an author for the release commits."""
    target = folder / "clone"
    call("git", "clone", "--quiet", "--no-hardlinks", root, target)
    for name, value in (
        ("user.name", "Rehearsal"),
        ("user.email", "rehearsal@example.invalid"),
        ("commit.gpgsign", "false"),
        ("tag.gpgsign", "false"),
    ):
        call("git", "-C", target, "config", name, value)
    return Rehearsal(root=target, dist=folder / "dist", work=folder / "work")


def tag(rehearsal: Rehearsal) -> None:
    """Release each library that has fragments, then the meta-package, by the clone's script."""
    script = rehearsal.root / "scripts" / "release.py"
    for member in rehearsal.members().values():
        if member.folder != workspace.META and list((member.path / "changes").glob("*.*.md")):
            call(sys.executable, script, member.folder, "minor")
    call(sys.executable, script, workspace.META)


def build(rehearsal: Rehearsal, members: Sequence[Member]) -> list[Path]:
    """Build the sdist of each member and of its native wheel, and the wheel from the sdist."""
    for member in members:
        for folder in [member.path, *([member.path / "native"] if member.native else [])]:
            call("uv", "build", "--quiet", folder, "--out-dir", rehearsal.dist)
    return sorted(f for f in rehearsal.dist.iterdir() if f.suffix in (".whl", ".gz"))


def check(files: Sequence[Path]) -> None:
    """Refuse built files without a licence, without classifiers, or with a broken README."""
    lacks = "\n".join(lack for file in files for lack in artifacts.problems(file))
    if lacks := lacks or artifacts.rendering(files):
        raise RehearsalError(
            f"each file must be fit for an index; got\n{lacks}\nmend its pyproject.toml or README"
        )


def resolve(rehearsal: Rehearsal, meta: Member, extra: str, python: str) -> int:
    """Resolve the meta-package with one extra; returns the number of distributions."""
    needed = f"{meta.name}[{extra}]=={meta.version}"
    file = rehearsal.work / "needed.in"
    file.write_text(needed + "\n", encoding="utf-8")
    line = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    line += ["--python-version", python, "--find-links", str(rehearsal.dist), str(file)]
    return len(call(*line, cwd=rehearsal.work).splitlines())


def install(rehearsal: Rehearsal, member: Member, python: str, *extra: str) -> Path:
    """Install one package from the folder of wheels; returns the environment's Python."""
    folder = rehearsal.work / f"{member.folder}-{python}"
    call("uv", "venv", "--quiet", "--no-python-downloads", "--python", python, folder)
    executable = folder / "bin" / "python"
    line = ["uv", "pip", "install", "--quiet", "--python", str(executable)]
    line += ["--find-links", str(rehearsal.dist), f"{member.name}=={member.version}", *extra]
    call(*line, cwd=rehearsal.work)
    where = f"import {member.module} as m; print(m.__version__, m.__file__)"
    version, file = call(executable, "-I", "-c", where, cwd=rehearsal.work).split()
    if version != member.version or not Path(file).is_relative_to(folder):
        raise RehearsalError(
            f"the wheel must be imported; got {version} from {file}; it is {member.version}"
        )
    return executable


def run_readme(rehearsal: Rehearsal, member: Member, python: Path) -> None:
    """Run the programs of a package's README; those of the meta-package after `dovetail doctor`."""
    if member.folder == workspace.META:
        call(python.with_name("dovetail"), "doctor", cwd=rehearsal.work)
    script = rehearsal.root / "scripts" / "documents.py"
    call(python, script, "--programs", member.path / "README.md", cwd=rehearsal.work)


def run_notebook(notebook: Path, python: Path) -> None:
    """Run one notebook by nbclient, in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="dovetail-notebook-") as folder:
        shutil.copy(notebook, folder)
        runner = python.with_name("jupyter-execute")
        call(runner, "--kernel_name=python3", notebook.name, cwd=Path(folder))


def notebooks(rehearsal: Rehearsal, names: Sequence[str]) -> list[Path]:
    """Returns the files of the named notebooks of the clone."""
    folder = rehearsal.root / "examples" / "notebooks"
    files = [folder / f"{name}.ipynb" for name in names]
    missing = [file.stem for file in files if not file.is_file()]
    if missing:
        there = sorted(file.stem for file in folder.glob("*.ipynb"))
        raise RehearsalError(
            f"a notebook must be a committed file of examples/notebooks; got {missing}; "
            f"pass --notebooks with names of {there}"
        )
    return files


def rehearse(rehearsal: Rehearsal, options: argparse.Namespace) -> list[Path]:
    """Do all steps in order; returns the files that a release would upload."""
    with timed("tag, bump and write changelogs"):
        tag(rehearsal)
    everyone = rehearsal.members()
    meta = everyone[workspace.META]
    chosen = [everyone[name] for name in options.only or everyone]
    needed = [m for m in everyone.values() if any(m in workspace.needs(c, [m]) for c in chosen)]
    with timed(f"build {len(needed)} packages"):
        files = build(rehearsal, needed)
    with timed(f"check {len(files)} files"):
        check(files)
    rehearsal.work.mkdir()
    for python in options.python:
        for extra in EXTRAS if meta in chosen else ():
            with timed(f"resolve {meta.name}[{extra}] on Python {python}"):
                count = resolve(rehearsal, meta, extra, python)
                print(f" {count} distributions,", end="")
        for member in chosen:
            with_notebooks = member == meta and options.notebooks
            with timed(f"install {member.name} {member.version} on Python {python}"):
                also = FOR_NOTEBOOKS if with_notebooks else ()
                executable = install(rehearsal, member, python, *also)
            with timed(f"programs of its README on Python {python}"):
                run_readme(rehearsal, member, executable)
            for notebook in notebooks(rehearsal, options.notebooks) if with_notebooks else ():
                with timed(f"notebook {notebook.stem} on Python {python}"):
                    run_notebook(notebook, executable)
            shutil.rmtree(executable.parent.parent)
    return files


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/release --rehearse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = sorted(workspace.members())
    parser.add_argument("--only", nargs="+", choices=names, help="packages; all by default")
    parser.add_argument(
        "--python", nargs="+", choices=PYTHONS, default=PYTHONS, help="versions; all by default"
    )
    parser.add_argument(
        "--notebooks", nargs="*", default=NOTEBOOKS, help="names in examples/notebooks; two"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for the built files")
    options = parser.parse_args(argv)
    options.commit = call("git", "-C", workspace.ROOT, "rev-parse", "HEAD").strip()
    return options


def main() -> None:
    """Rehearse, and print what would be uploaded."""
    options = parse()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dovetail-rehearsal-") as folder:
        rehearsal = clone(Path(folder))
        print(f"Rehearsing commit {options.commit[:12]}.")
        if options.only is None or workspace.META in options.only:
            notebooks(rehearsal, options.notebooks)  # before the long work
        files = rehearse(rehearsal, options)
        print(f"\nWould be uploaded, {len(files)} files (bytes, SHA-256, name):")
        print(artifacts.table(files))
        new = call("git", "-C", rehearsal.root, "tag", "--no-merged", options.commit).split()
        print(f"\nRehearsed {', '.join(new)} in {(time.monotonic() - start) / 60:.1f} minutes.")
        if options.keep:
            shutil.copytree(rehearsal.dist, options.keep)


if __name__ == "__main__":
    try:
        main()
    except RehearsalError as error:
        sys.exit(f"\nscripts/release --rehearse: {error}")
