# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`precompile`: compiles a bundle for this machine, once, and keeps the executables.

An executable out of JAX's persistent compilation cache serializes into a broken one, so
programs are compiled in a fresh process without that cache. A second fresh process loads each
executable, runs the example and compares bits with the first. Only then the sidecar is moved to
its place. This process reads no executable and starts no device.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from dovetail_serve import _elsewhere
from dovetail_serve._decode import decode
from dovetail_serve._durable import new_directory
from dovetail_serve._safetensors import parse_json
from dovetail_serve.bundle.folder import Folder, open_bundle, verify_folder
from dovetail_serve.errors import BundleError
from dovetail_serve.loading import aot
from dovetail_serve.loading.precompile_child import ChildReport

# Lines of a failed child that its error shows: the end of a traceback.
_SHOWN_LINES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precompiled:
    """A compiled program in the user's cache.

    Attributes:
        rows: Number of rows; None without a batch axis.
        file: Path of the serialized executable.
        bytes: Its size.
        compile_s: Time to compile it, in seconds.
        load_s: Time to load it again in a fresh process, in seconds.
    """

    rows: int | None
    file: Path
    bytes: int
    compile_s: float
    load_s: float


@_elsewhere.call
def precompile(
    path: str | os.PathLike[str],
    *,
    devices: Sequence[Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> list[Precompiled]:
    """Compiles every program of a bundle for this machine and keeps the executables.

    `load` then finds them in the user's cache and compiles nothing. They are for this user, this
    machine, these versions of JAX and this XLA_FLAGS alone. An older sidecar for them is replaced.

    Args:
        path: The directory of the bundle.
        devices: Devices to compile for. Default: as for `load`.
        cache: Directory of all sidecars. Default: $XDG_CACHE_HOME/dovetail/serve, with ~/.cache in
            place of an unset variable; `load` reads this one alone.

    Returns:
        The programs, by ascending number of rows.

    Raises:
        FileNotFoundError: There is no bundle.
        BundleError: It cannot be used here.
        IntegrityError: A byte differs.
        PermissionError: Another user can write the cache, or this one cannot.
        RuntimeError: A program does not compile, cannot be kept, or gives other results after it
            was loaded again; or this user has no home directory and XDG_CACHE_HOME is not set.
    """
    if os.name != "posix":
        raise RuntimeError(
            f"sidecars need the permissions of POSIX, got os.name={os.name!r}; load the bundle "
            "without one"
        )
    folder = open_bundle(path)
    verify_folder(folder)
    root = _own_directory(Path(cache) if cache else aot.cache_root())
    with tempfile.TemporaryDirectory(dir=root, prefix=".compiling.") as directory:
        staging = Path(directory)
        compiled = _run_child("compile", folder, staging, devices)
        loaded = _run_child("check", folder, staging, devices)
        compare(folder, compiled, loaded)
        staged = aot.sidecar_path(folder.digest, compiled.key, aot.cache_root(staging))
        place = aot.sidecar_path(folder.digest, compiled.key, root)
        programs = []
        for rows in folder.manifest.batch_sizes or (None,):
            name = aot.program_name(rows)
            file = aot.payload_file(rows)
            programs.append(
                Precompiled(
                    rows=rows,
                    file=place / file,
                    bytes=(staged / file).stat().st_size,
                    compile_s=compiled.seconds[name],
                    load_s=loaded.seconds[name],
                )
            )
        _move(staged, place, root)
    return programs


def _own_directory(cache: Path) -> Path:
    """Creates the directory of all sidecars. Raises PermissionError if others can write it."""
    try:
        missing = [parent for parent in (cache, *cache.parents) if not parent.exists()]
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        # PermissionError, or OSError on a file system that is read-only, full or gone.
        raise type(error)(
            f"the cache must be a directory that this user can make and read, got {error}; set "
            "XDG_CACHE_HOME to a directory of this user"
        ) from error
    root = Path(os.path.realpath(cache))
    aot.check_above(root)
    aot.check_private(root, root.lstat())
    return root


def _run_child(
    action: str, folder: Folder, staging: Path, devices: Sequence[Any] | None
) -> ChildReport:
    """Runs an action in a fresh process without the persistent cache. Returns its report."""
    device_ids = None
    if devices:
        device_ids = {"platform": devices[0].platform, "ids": [device.id for device in devices]}
    environment = {
        **os.environ,
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XDG_CACHE_HOME": str(staging),
        # This process, or a server, may have most of the device's memory.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    # Options that may have been set by jax.config rather than by the environment.
    if platforms := jax.config.jax_platforms:  # type: ignore[attr-defined]
        environment["JAX_PLATFORMS"] = platforms
    if (count := jax.config.jax_num_cpu_devices) > 0:  # type: ignore[attr-defined]
        environment["JAX_NUM_CPU_DEVICES"] = str(count)
    module = "dovetail_serve.loading.precompile_child"
    # -P: modules of the current directory are not those of the bundle's reader.
    report = staging / f"{action}.json"
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", module),
            *(action, os.path.abspath(folder.path), str(report), json.dumps(device_ids)),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == BundleError.exit_code:
        raise BundleError(report.read_text())
    if done.returncode:
        lines = "\n".join(done.stderr.splitlines()[-_SHOWN_LINES:])
        raise RuntimeError(
            f"programs must compile and load in a process of their own, got exit code "
            f"{done.returncode} of {action!r} for {str(folder.path)!r}; load the bundle without a "
            f"sidecar. It wrote:\n{lines}"
        )
    return decode(ChildReport, parse_json(report.read_bytes()))


def compare(folder: Folder, compiled: ChildReport, loaded: ChildReport) -> None:
    """Compares the results of loaded programs with those of compiled ones.

    Args:
        folder: The bundle.
        compiled: Report of the compiling process.
        loaded: Report of the loading process.

    Raises:
        RuntimeError: Results or devices differ.
    """
    if compiled.key != loaded.key:
        raise RuntimeError(
            "two processes must see one machine, and their devices differ; try again"
        )
    for name, results in compiled.results.items():
        if loaded.results[name] != results:
            raise RuntimeError(
                f"a kept program must compute equal bits, and that for {name} rows of "
                f"{str(folder.path)!r} differs after it was loaded; load the bundle without a "
                "sidecar"
            )


def _move(staged: Path, place: Path, root: Path) -> None:
    """Moves a sidecar to its place. A reader meanwhile finds the old one, this one, or none.

    Another process may move one of the same bundle and machine there at the same time. It was
    checked like this one, so whichever comes last stays, or the one that is already there.
    """
    place.parent.mkdir(mode=0o700, exist_ok=True)
    old = root / f".old.{uuid.uuid4().hex[:8]}"
    with contextlib.suppress(FileNotFoundError):  # none, or the other process moved it away
        place.rename(old)
        shutil.rmtree(old)
    with contextlib.suppress(FileExistsError), new_directory(place) as directory:
        directory.chmod(0o700)
        for file in staged.iterdir():
            file.rename(directory / file.name)
