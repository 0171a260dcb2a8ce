# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The launches of a run, `launches.jsonl`: time, command, commit, versions and devices of each.

A launch has two lines: one at its start, one at its end. A killed launch has no second line, and
its lock is free. The environment is not recorded, because it may hold secrets.
"""

import contextlib
import json
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import dovetail_stack
from dovetail_stack import settings

if TYPE_CHECKING:
    from jax.sharding import Mesh

FILE, LOCK = "launches.jsonl", ".lock"
# Whatever takes part in the arithmetic, plugins of devices included.
_RECORDED = re.compile(r"jax|jaxlib|jax-.*|flax|optax|orbax-checkpoint|numpy|dovetail(-.*)?")
# A look at the lock, as `dovetail runs` takes it, holds it for less than this.
_TRIES, _WAIT_S = 5, 0.05
GIT_TIMEOUT_S = 10.0  # of one question; a status of 100,000 files takes about 1
_held: set[Path] = set()  # runs that this process holds: POSIX locks are a process's
_log = logging.getLogger(__name__)


@dataclass
class Record:
    """Outcome of a launch: finished, or else interrupted."""

    finished: bool = False


@contextlib.contextmanager
def recorded(
    run: Path,
    *,
    command: Sequence[str],
    seeds: Mapping[str, int],
    mesh: "Mesh",
    changes: Mapping[str, Sequence[Any]] | None = None,
    generation: int | None = None,
) -> Iterator[Record]:
    """Locks the run and records the start and the end of a launch. Set `finished` inside.

    Logs a warning if versions differ from those of the first launch.

    Args:
        run: Directory of the run.
        command: Arguments of the command `dovetail`.
        seeds: Random seeds by name.
        mesh: Devices of the launch.
        changes: Settings that this launch changes, as {name: [before, after]}. Default: none.
        generation: Number of the start within a job on many hosts, whose command holds the lock.
            Default: no such job.

    Raises:
        RuntimeError: Another process holds the run.
    """
    with locked(run) if generation is None else contextlib.nullcontext():
        earlier = [event for event in read(run) if event["event"] == "start"]
        begun = _beginning(command, seeds, mesh)
        if changes:
            begun["changes"] = dict(changes)
        if generation is not None:
            begun["generation"] = generation
        if earlier:
            _compare(earlier[0]["versions"], begun["versions"])
        append(run / FILE, begun)
        record = Record()
        try:
            yield record
        except BaseException as error:
            # Where the disk is what failed, the error that is under way says more than another one.
            with contextlib.suppress(OSError):
                append(run / FILE, failed(error))
            raise
        outcome = "finished" if record.finished else "interrupted"
        append(run / FILE, {"event": "end", "time": now(), "outcome": outcome})


def failed(error: BaseException) -> dict[str, Any]:
    """Returns the end of a launch that failed."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return {"event": "end", "time": now(), "outcome": "failed", "error": reason}


def read(run: Path, *, file: str = FILE) -> list[dict[str, Any]]:
    """Returns the events in order; none without the file. An incomplete last line is left out.

    Args:
        run: Directory of the run.
        file: Name of the file.

    Raises:
        RunError: Any other line is not an event.
    """
    path = run / file
    data = path.read_bytes() if path.is_file() else b""
    events = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not {"event", "time"} <= event.keys():
            raise settings.RunError(
                f"each line must be an event of a run, got {path}:{number}: {line[:60]!r}; "
                "remove that line"
            )
        events.append(event)
    return events


def is_running(run: Path) -> bool:
    """Tests whether another process of this machine holds the run."""
    import fcntl

    if run.resolve() in _held:  # to open and close the file would release the lock
        return False
    try:
        with (run / LOCK).open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def host() -> str:
    """Returns the name of this machine."""
    return platform.node()


def now() -> str:
    """Returns the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions() -> dict[str, str]:
    """Returns the versions of Python, JAX, its libraries and Dovetail."""
    installed = {"python": platform.python_version()}
    for distribution in metadata.distributions():
        name = (distribution.name or "").lower().replace("_", "-")
        if _RECORDED.fullmatch(name) and name not in installed:  # the first on the path is imported
            installed[name] = distribution.version
    return dict(sorted(installed.items()))


def _beginning(command: Sequence[str], seeds: Mapping[str, int], mesh: "Mesh") -> dict[str, Any]:
    device = mesh.devices.flat[0]
    return {
        "event": "start",
        "time": now(),
        "command": shlex.join(["dovetail", *command]),
        "host": host(),
        "cores": os.cpu_count(),
        "devices": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": mesh.size,
            "mesh": {axis: size for axis, size in mesh.shape.items() if size > 1},
        },
        "seeds": dict(seeds),
        "versions": versions(),
        "git": {
            "directory": commit_of(Path.cwd()),
            "code": commit_of_file(Path(dovetail_stack.__file__)),
        },
    }


def commit_of(directory: Path) -> dict[str, Any] | None:
    """Returns {"commit": hash, "dirty": bool}, or None outside of a repository.

    "dirty" says whether tracked files differ from the commit. It is None if git cannot tell.
    """
    commit = _ask_git(directory, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    changes = _ask_git(directory, "status", *options)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def commit_of_file(file: Path) -> dict[str, Any] | None:
    """Returns the state of the repository with `file` under version control, or None.

    A repository around a virtual environment does not count if it does not track the file.
    """
    if _ask_git(file.parent, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    return commit_of(file.parent)


def _ask_git(directory: Path, *line: str) -> str | None:
    """Returns git's output; None without git, outside of a repository, or after the timeout.

    git receives no environment of the caller: a variable could point it at another repository or
    make it wait for input. Programs named by the repository's configuration are not started.
    """
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-c", "core.fsmonitor=false", "-C", str(directory), *line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
            env={
                "PATH": os.defpath,
                "HOME": os.path.expanduser("~"),  # which directories of others are trusted
                "LC_ALL": "C",
                "GIT_OPTIONAL_LOCKS": "0",  # never in the way of another git
                "GIT_TERMINAL_PROMPT": "0",
            },
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _compare(first: Mapping[str, str], present: Mapping[str, str]) -> None:
    differing = [
        f"{name} {first.get(name, 'none')} is now {present.get(name, 'none')}"
        for name in sorted(first.keys() | present.keys())
        if first.get(name) != present.get(name)
    ]
    if differing:
        _log.warning(
            "the run began with other versions (%s): it goes on, but equal to an unbroken run in "
            "every bit it is with the same ones only",
            ", ".join(differing),
        )


def append(path: Path, event: Mapping[str, Any]) -> None:
    """Appends a line and syncs it to the disk. An incomplete last line is removed first.

    Args:
        path: The file.
        event: The line, with "event" and "time".
    """
    with path.open("a+b") as file:
        file.seek(0)
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        file.write(json.dumps(event).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Holds a POSIX lock, which ends with this process in any case. Children do not inherit it.

    A block that leaves no run behind, such as a refusal, leaves no lock and no new directory.
    Raises RuntimeError if another process holds it.
    """
    existed, was_run = run.exists(), (run / LOCK).exists()
    run.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for remaining in reversed(range(_TRIES)):
            if (file := _acquired(run / LOCK)) is not None:
                stack.enter_context(file)
                break
            if not remaining:
                raise RuntimeError(
                    f"a run must have one process at a time, got {str(run)!r}, which another "
                    "has: wait for it, or stop it first"
                )
            time.sleep(_WAIT_S)
        _held.add(run.resolve())
        try:
            yield
        finally:
            _held.discard(run.resolve())
            if not was_run and not (run / settings.FILE).is_file():
                (run / LOCK).unlink(missing_ok=True)
                if not existed and not any(run.iterdir()):
                    run.rmdir()


def _acquired(path: Path) -> IO[bytes] | None:
    """Returns the locked file, or None if another process holds it or has removed it."""
    import fcntl

    file = path.open("wb")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
            return file
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass  # held, by either name of that error, or removed: the caller tries again
    file.close()
    return None
