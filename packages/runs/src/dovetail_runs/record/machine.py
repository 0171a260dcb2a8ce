# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""This machine and this program, as a launch records them: host, devices, versions, commits.

The environment is not recorded, because it may hold secrets. The file of `_TUNING` is, by a digest:
it chooses the implementations of dovetail-kernels, and so the bits of a run.
"""

import collections
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

# Whatever takes part in the arithmetic, plugins of devices included.
_RECORDED = re.compile(
    r"jax|jaxlib|jax-.*|flax|optax|equinox|orbax-checkpoint|numpy|torch|torch-.*|tensorflow"
    r"|transformers|dovetail(-.*)?"
)
_TUNING = "DOVETAIL_KERNELS_TUNING"
GIT_TIMEOUT_S = 10.0  # of one question; a status of 100,000 files takes about 1


def host() -> str:
    """Returns the name of this machine."""
    return platform.node()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed libraries that compute.

    Under "dovetail-kernels-tuning" is the digest of its tuning file, as `tuning_digest` gives it.
    """
    path = os.environ.get(_TUNING)
    tuning = {"dovetail-kernels-tuning": _digest(path)} if path else {}
    return dict(sorted({**_versions(), **tuning}.items()))


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"


@functools.cache  # hundreds of files: as long as all else at the start of a launch
def _versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for distribution in metadata.distributions():
        name = (distribution.name or "").lower().replace("_", "-")
        if _RECORDED.fullmatch(name) and name not in installed:  # the first on the path is imported
            installed[name] = distribution.version
    return dict(sorted(installed.items()))


def differing(first: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Returns "jax 0.10.2 is now 0.12.0" for each version that differs."""
    return [
        f"{name} {first.get(name, 'none')} is now {present.get(name, 'none')}"
        for name in sorted(first.keys() | present.keys())
        if first.get(name) != present.get(name)
    ]


def devices_of(devices: Iterable[Any]) -> dict[str, Any]:
    """Describes devices of JAX for `Run.launch`.

    Args:
        devices: Such as `jax.devices()`, or the devices of a mesh.

    Returns:
        "platform", "kind" and "count". Of several kinds, each is named with its count.

    Raises:
        TypeError: An item has no `platform` and `device_kind`.
        ValueError: There is none.
    """
    listed = list(devices)
    if not listed:
        raise ValueError("devices must not be empty, got none: pass jax.devices()")
    if wrong := [d for d in listed if not hasattr(d, "platform") or not hasattr(d, "device_kind")]:
        raise TypeError(
            f"devices must be those of JAX, got {wrong[0]!r:.100}: pass jax.devices(), or write "
            "devices={'platform': 'cuda', 'kind': 'H100', 'count': 1} yourself"
        )
    kinds = collections.Counter(device.device_kind for device in listed)
    several = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return {
        "platform": listed[0].platform,
        "kind": several if len(kinds) > 1 else listed[0].device_kind,
        "count": len(listed),
    }


def commit_of(folder: Path) -> dict[str, Any] | None:
    """Returns {"commit": hash, "dirty": bool}, or None outside of a repository.

    "dirty" says whether tracked files differ from the commit. It is None if git cannot tell.
    """
    commit = _ask_git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    changes = _ask_git(folder, "status", *options)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def commit_of_file(file: Path) -> dict[str, Any] | None:
    """Returns the state of the repository with `file` under version control, or None.

    A repository around a virtual environment does not count if it does not track the file.
    """
    if _ask_git(file.parent, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    return commit_of(file.parent)


def _ask_git(folder: Path, *line: str) -> str | None:
    """Returns git's output; None without git, outside of a repository, or after the timeout.

    git receives no environment of the caller: a variable could point it at another repository or
    make it wait for input. Programs named by the repository's configuration are not started.
    """
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-c", "core.fsmonitor=false", "-C", str(folder), *line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
            env={
                "PATH": os.defpath,
                "HOME": os.path.expanduser("~"),  # which folders of others are trusted
                "LC_ALL": "C",
                "GIT_OPTIONAL_LOCKS": "0",  # never in the way of another git
                "GIT_TERMINAL_PROMPT": "0",
            },
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
