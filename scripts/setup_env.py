# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Make .venv: the tested set of dependencies and all members, editable. Safe to run twice.

Only the standard library, run by the Python that `.venv` will have. A stamp file marks the folder
as ours from the first moment. Once the installation is complete, it holds a digest of its inputs.
So a second run returns at once, an unfinished one is begun again from an empty folder, and a
`.venv` that somebody else made is left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys

import workspace

VENV = workspace.ROOT / ".venv"
STAMP = VENV / "dovetail-setup"  # empty while unfinished, then the digest


def digest(python: str) -> str:
    """Returns a hash over the inputs of an installation: the files, the Python, the folder."""
    files = sorted(workspace.ROOT.glob("packages/*/pyproject.toml"))
    files += [workspace.ROOT / "pyproject.toml", workspace.constraints_file(python)]
    total = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{workspace.ROOT}\n".encode())
    for file in files:
        total.update(f"{file.relative_to(workspace.ROOT)}\n".encode() + file.read_bytes())
    return total.hexdigest()


def run(*command: str) -> None:
    """Runs an installer on the terminal; SystemExit if it fails."""
    if subprocess.run(command, cwd=workspace.ROOT, check=False).returncode:
        sys.exit(
            "set-up: the installer failed; its lines are above. Without the package index: set "
            "HTTPS_PROXY, or name a mirror with UV_DEFAULT_INDEX and PIP_INDEX_URL. Then run the "
            "same command again"
        )


def requirements() -> list[str]:
    """Arguments of `uv pip install`: every member with its extras, and the groups for tests."""
    everyone = workspace.members().values()
    line = [part for m in everyone for part in ("--editable", m.editable())]
    groups = [f"{m.path}/pyproject.toml:test" for m in everyone if "test" in m.groups]
    return [*line, *(p for g in [*groups, "pyproject.toml:dev"] for p in ("--group", g))]


def add(python: str, *wanted: str) -> None:
    """Installs requirements into .venv; needs no network if they are there."""
    constraint = ("--constraint", str(workspace.constraints_file(python)))
    uv = (str(VENV / "bin" / "uv"), "pip", "install", "--python", str(VENV / "bin" / "python"))
    run(*uv, *constraint, *wanted)


def install(python: str) -> None:
    """Makes .venv from nothing, with the tested set and the members in it."""
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    STAMP.touch()
    print("set-up: installing the tested set and Dovetail's packages", file=sys.stderr)
    run(sys.executable, "-m", "venv", str(VENV))
    inside = str(VENV / "bin" / "python")
    constraint = ("--constraint", str(workspace.constraints_file(python)))
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(inside, *pip, *constraint, "uv")
    add(python, *requirements())


def main() -> None:
    """Makes .venv unless it is made, and adds the extras of the meta-package that are named."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with (workspace.ROOT / ".setup-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two terminals, one .venv: the second finds it made
        wanted = digest(python)
        if not STAMP.exists() or STAMP.read_text(encoding="utf-8") != wanted:
            if VENV.is_dir() and any(VENV.iterdir()) and not STAMP.exists():
                sys.exit(
                    f"set-up: {VENV} exists without {STAMP.name}, so it may be somebody's own. "
                    "Move it away or delete it, then run the same command again"
                )
            install(python)
            STAMP.write_text(wanted, encoding="utf-8")
        for extra in sys.argv[1:]:
            add(python, "--quiet", *workspace.members()[workspace.META].extras[extra])


if __name__ == "__main__":
    main()
