# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sidecars: executables of a bundle, compiled by this user on this machine.

A sidecar is a directory of the user's cache, beside no bundle and never in one:

    $XDG_CACHE_HOME/dovetail/serve/BUNDLE/KEY/
        index.json        the bundle, the key, and size and digest of each payload
        8.executable      the program for 8 rows, as JAX serializes an executable

JAX serializes executables as pickles, and a pickle runs code when it is read. A digest does not
help: whoever can write a payload can write its digest too. So a payload is read only where nobody
else can have written it: each directory and file belongs to this user and is writable by nobody
else, none is a link, and nobody else can rename a directory above. They are opened one inside
another, and the bytes are read once, for the check and for the load.

The key holds everything else an executable depends on: versions, devices, options. Another key is
another directory, so a new jaxlib or another CPU finds none, and the program is compiled.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail_serve._compat import deserialize_and_load, platform_of
from dovetail_serve._decode import decode
from dovetail_serve._safetensors import parse_json
from dovetail_serve.bundle.digest import digest
from dovetail_serve.bundle.folder import Folder
from dovetail_serve.bundle.manifest import Manifest

INDEX = "index.json"
SCHEMA = 1

_log = logging.getLogger(__name__)
# Links are refused, and a pipe is not waited for.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CPUINFO = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payload:
    """A serialized executable.

    Attributes:
        file: Its file within the sidecar.
        bytes: Its size.
        sha256: Its digest.
    """

    file: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index:
    """The contents of a sidecar.

    Attributes:
        schema: Version of this document.
        bundle: Digest of the bundle, "sha256:...".
        key: Versions, devices and options of the executables.
        programs: Payloads by number of rows; "all" without a batch axis.
    """

    schema: int
    bundle: str
    key: Mapping[str, str]
    programs: Mapping[str, Payload]

    def to_json(self) -> bytes:
        """Returns the document."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True).encode() + b"\n"


def cache_root(base: Path | None = None) -> Path:
    """Returns the directory of all sidecars. It may be absent.

    `base` is the user's cache. Default: $XDG_CACHE_HOME or ~/.cache.

    Raises RuntimeError if the user has no home directory and XDG_CACHE_HOME is not absolute.
    """
    if base is None:
        given = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification ignores relative paths.
        base = Path(given) if os.path.isabs(given) else _home() / ".cache"
    return base / "dovetail" / "serve"


def machine_key(manifest: Manifest, devices: Sequence[Any]) -> dict[str, str]:
    """Returns the versions, devices and options an executable depends on.

    Args:
        manifest: Of the bundle; it holds compiler options, layouts and x64.
        devices: Devices of the program.
    """
    first = devices[0]
    target = manifest.platform(platform_of(first))
    return {
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "platform": first.platform,
        "platform_version": str(first.client.platform_version),
        "device_kind": first.device_kind,
        "device_ids": json.dumps([device.id for device in devices]),
        "device_count": str(first.client.device_count()),
        "cpu": _cpu(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "compiler_options": json.dumps(dict(target.compiler_options), sort_keys=True),
        "layouts": json.dumps(dict(target.layouts), sort_keys=True),
        "weights": str(target.weights),
        "x64": str(manifest.x64),
    }


def sidecar_path(bundle: str, key: Mapping[str, str], cache: Path) -> Path:
    """Returns the directory of a sidecar. It may be absent.

    Args:
        bundle: Digest of the bundle, "sha256:...".
        key: The result of `machine_key`.
        cache: Directory of all sidecars.
    """
    document = json.dumps(dict(key), sort_keys=True).encode()
    return cache / bundle.removeprefix("sha256:") / digest(document)


def load_executable(
    folder: Folder, rows: int | None, *, devices: Sequence[Any]
) -> jax.stages.Compiled | None:
    """Loads a compiled program from the user's cache.

    An untrusted sidecar, or one that does not load, is logged and left alone.

    Args:
        folder: The bundle.
        rows: Number of rows; None without a batch axis.
        devices: Devices of the program.

    Returns:
        The program, or None if it must be compiled.
    """
    try:
        cache = cache_root()
    except RuntimeError:
        return None  # without a home directory precompile keeps nothing
    # Unlike Path.is_dir, false where this user may not look.
    if os.name != "posix" or not os.path.isdir(cache / folder.digest.removeprefix("sha256:")):
        return None
    key = machine_key(folder.manifest, devices)
    path = sidecar_path(folder.digest, key, cache)
    try:
        payload = read_payload(path, rows, bundle=folder.digest, key=key, cache=cache)
        return deserialize(payload, folder.manifest, devices)
    except FileNotFoundError:
        return None  # compiled for another machine alone, or not for these rows
    except Exception as error:  # a payload may fail in any way, and the program still compiles
        _log.warning("the sidecar %s is ignored and the program compiled: %s", path, error)
        return None


def deserialize(payload: bytes, manifest: Manifest, devices: Sequence[Any]) -> jax.stages.Compiled:
    """Returns the executable of a payload. Runs whatever code the payload names.

    Args:
        payload: Bytes serialized by this user.
        manifest: Of the bundle; it gives the names of arguments and results.
        devices: Devices of the program.
    """
    if b"lapack_" in payload:
        # An executable with LAPACK's functions does not load them, and its call ends the process.
        # Lowering one for CPUs does.
        matrix = jax.ShapeDtypeStruct((1, 1), np.float32)
        jax.jit(jax.numpy.linalg.cholesky).trace(matrix).lower(lowering_platforms=("cpu",))
    return deserialize_and_load(
        payload, *trees(manifest), backend=devices[0].client, execution_devices=devices
    )


def trees(manifest: Manifest) -> tuple[Any, Any]:
    """Returns the structures of a program's arguments and results. No payload holds them."""
    arguments = (dict.fromkeys(manifest.weights, 0), dict.fromkeys(manifest.signature.inputs, 0))
    outputs = dict.fromkeys(manifest.signature.outputs, 0)
    return jax.tree.structure((arguments, {})), jax.tree.structure(outputs)


def read_payload(
    path: Path, rows: int | None, *, bundle: str, key: Mapping[str, str], cache: Path
) -> bytes:
    """Reads a payload after checking the owner and the mode of its path.

    Args:
        path: Directory of the sidecar, below `cache`.
        rows: Number of rows; None without a batch axis.
        bundle: Required digest of the index.
        key: Required key of the index.
        cache: Directory of all sidecars.

    Raises:
        FileNotFoundError: There is no sidecar, or none for these rows.
        PermissionError: Another user can write it.
        OSError: It is a link, or cannot be read.
        ValueError: The index is wrong, or a payload differs from its digest.
    """
    with _opened(cache, path.relative_to(cache).parts) as (descriptor, place):
        fields = parse_json(_read(descriptor, place, INDEX))
        index = decode(Index, fields)
        if (index.schema, index.bundle, index.key) != (SCHEMA, bundle, key):
            raise ValueError(f"{INDEX} is of another bundle or machine; run precompile again")
        if program_name(rows) not in index.programs:
            raise FileNotFoundError(f"{path} has no program for {rows} rows")
        entry = index.programs[program_name(rows)]
        payload = _read(descriptor, place, entry.file)
    if len(payload) != entry.bytes or digest(payload) != entry.sha256:
        raise ValueError(f"{entry.file} differs from its digest; run precompile again")
    return payload


def program_name(rows: int | None) -> str:
    """Returns the name of a program in the index."""
    return "all" if rows is None else str(rows)


def payload_file(rows: int | None) -> str:
    """Returns the file name of a payload."""
    return f"{program_name(rows)}.executable"


def check_above(directory: Path) -> None:
    """Raises PermissionError if another user can rename a directory above `directory`.

    `directory` has no links. A sticky directory, such as /tmp, lets only owners rename.
    """
    for parent in directory.parents:
        state = parent.lstat()
        writable = state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX
        if state.st_uid not in (0, os.geteuid()) or writable:
            raise PermissionError(_refusal(parent, state))


@contextlib.contextmanager
def _opened(cache: Path, parts: Sequence[str]) -> Iterator[tuple[int, Path]]:
    """Yields a descriptor of the directory `cache`/`parts`, and its path without links."""
    place = Path(os.path.realpath(cache))
    check_above(place)
    with contextlib.ExitStack() as stack:
        descriptor = os.open(place, _FLAGS | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        check_private(place, os.fstat(descriptor))
        for name in parts:
            descriptor = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=descriptor)
            stack.callback(os.close, descriptor)
            place = place / name
            check_private(place, os.fstat(descriptor))
        yield descriptor, place


def _read(directory: int, place: Path, name: str) -> bytes:
    """Reads a file of an opened directory."""
    if os.sep in name:
        raise ValueError(f"{INDEX} must name files beside it, got {name!r}; run precompile again")
    with open(os.open(name, _FLAGS, dir_fd=directory), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError(f"{place / name} must be a file; run precompile again")
        check_private(place / name, state)
        return file.read()


def _home() -> Path:
    """Returns the user's home directory. Raises RuntimeError if there is none."""
    try:
        return Path.home()
    except RuntimeError as error:  # HOME is unset, and the user has no entry in the password file
        raise RuntimeError(
            "the user's cache must have a place, got no home directory of user "
            f"{os.geteuid()}; set XDG_CACHE_HOME to a directory of this user"
        ) from error


def check_private(path: Path, state: os.stat_result) -> None:
    """Raises PermissionError unless `path` is this user's, and writable by nobody else."""
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise PermissionError(_refusal(path, state))


def _refusal(path: Path, state: os.stat_result) -> str:
    return (
        f"{path} must belong to this user and be writable by nobody else, got user={state.st_uid} "
        f"mode={stat.S_IMODE(state.st_mode):03o}; type chmod go-w {path}, or set XDG_CACHE_HOME"
    )


@functools.cache
def _cpu() -> str:
    """Returns the model of the CPU and a digest of its features; on Linux alone it has both."""
    fields = {}
    with contextlib.suppress(OSError):  # no /proc: another system than Linux
        for line in _CPUINFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            # "Features" is the name on Arm. All cores are taken to be alike.
            fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or fields.get("CPU part") or platform.processor()
    flags = fields.get("flags") or fields.get("Features") or ""
    features = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return f"{platform.machine()} {model} {features}"
