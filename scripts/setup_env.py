# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Make .venv: the tested set of dependencies and all members, editable. Safe to run twice.

Only the standard library, run by the Python that `.venv` will have. A stamp file marks the folder
as ours from the first moment and holds a digest of everything that the installation followed from
once it is complete. So a second run returns at once, an unfinished one (killed, disk full, network
gone) is begun again from an empty folder, and a `.venv` that somebody else made is left alone.
What was downloaded stays in uv's cache, so that beginning again costs seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys

import workspace

VENV = workspace.ROOT / ".venv"
STAMP = "dovetail-setup"  # inside .venv: empty while unfinished, then the digest
NEEDED_BYTES = 2_000_000_000  # .venv and uv's cache of it, measured on Linux, with a third to spare


class SetupError(RuntimeError):
    """Set-up cannot go on; the message says what the user can do."""


def digest(python: str) -> str:
    """What an installation follows from: the files, the Python, and where it stands."""
    files = sorted(workspace.ROOT.glob("packages/*/pyproject.toml"))
    files += [workspace.ROOT / "pyproject.toml", workspace.constraints_file(python)]
    found = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{workspace.ROOT}\n".encode())
    for file in files:
        found.update(f"{file.relative_to(workspace.ROOT)}\n".encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def check() -> None:
    """Refuse a .venv that this script did not make, a Python without venv, and a full disk."""
    if VENV.is_dir() and any(VENV.iterdir()) and not (VENV / STAMP).exists():
        raise SetupError(
            f"{VENV} exists, and this script did not make it, so it will not change it. Move it "
            "away or delete it, then run the same command again"
        )
    missing = [m for m in ("venv", "ensurepip") if importlib.util.find_spec(m) is None]
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"a virtual environment needs Python's own {' and '.join(missing)}, which "
            f"{sys.executable} lacks. On Debian and Ubuntu: apt install python{version}-venv; "
            "elsewhere install a complete Python and name it: PYTHON=/path/to/python3.12"
        )
    free_bytes = shutil.disk_usage(workspace.ROOT).free
    if free_bytes < NEEDED_BYTES:
        raise SetupError(
            f"set-up needs {NEEDED_BYTES / 1e9:.1f} GB free on the disk of {workspace.ROOT}; "
            f"{free_bytes / 1e9:.1f} GB are free. Free some, or clone to a larger disk (and let "
            "UV_CACHE_DIR name a folder there), then run the same command again"
        )


def run(what: str, *command: str) -> None:
    """Run one installer on the terminal; SetupError if it fails."""
    if subprocess.run(command, cwd=workspace.ROOT, check=False).returncode:
        raise SetupError(
            f"{what} failed; the lines above are the installer's own. If it could not reach the "
            "package index: check the network (behind a proxy set HTTPS_PROXY), or name a mirror "
            "with UV_DEFAULT_INDEX and PIP_INDEX_URL. Then run the same command again: what was "
            "downloaded is kept"
        )


def requirements() -> list[str]:
    """Arguments of `uv pip install`: every member with its extras, and the groups for tests."""
    everyone = workspace.members().values()
    line = [part for m in everyone for part in ("--editable", m.editable())]
    groups = [f"{m.path}/pyproject.toml:test" for m in everyone if "test" in m.groups]
    return [*line, *(p for g in [*groups, "pyproject.toml:dev"] for p in ("--group", g))]


def install(python: str) -> None:
    """Create .venv from nothing and install the tested set and the members into it."""
    old = VENV.with_name(".venv.old")
    shutil.rmtree(old, ignore_errors=True)
    if VENV.exists():
        VENV.rename(old)  # first, so that a kill while it is deleted leaves no half of a .venv
        shutil.rmtree(old)
    VENV.mkdir()
    (VENV / STAMP).touch()
    constraints = str(workspace.constraints_file(python))
    inside = str(VENV / "bin" / "python")
    run("making .venv", sys.executable, "-m", "venv", str(VENV))
    print("set-up: installing uv", file=sys.stderr)
    pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run("installing uv", *pip, "--constraint", constraints, "uv")
    print("set-up: installing the tested set and Dovetail's packages", file=sys.stderr)
    uv = (str(VENV / "bin" / "uv"), "pip", "install", "--python", inside)
    run("installing the packages", *uv, "--constraint", constraints, *requirements())


def main() -> None:
    """Make .venv unless it is made."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with (workspace.ROOT / ".setup-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two terminals, one .venv: the second finds it made
        wanted = digest(python)
        stamp = VENV / STAMP
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return
        check()
        install(python)
        finished = stamp.with_suffix(".new")
        finished.write_text(wanted, encoding="utf-8")
        os.replace(finished, stamp)


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"set-up: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted; run the same command again to begin anew")
