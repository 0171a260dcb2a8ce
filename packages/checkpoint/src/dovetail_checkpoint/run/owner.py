# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Owners of locks: processes, and whether they still run.

A process number says nothing on another machine or in another container, and numbers are used
again. An owner therefore also names its boot and its process namespace, and the clock tick of its
start. Where /proc has none of this, the host's name takes the place of both.
"""

import json
import os
import platform
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START_TICKS = 0, 19  # fields of /proc/PID/stat after the name, see proc(5)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process that holds a lock.

    Attributes:
        token: A random name of this claim.
        host: Name of the machine.
        pid: Number of the process.
        since: Time of the claim, UTC.
        root: The directory that it writes to.
        machine: Equal for processes that see each other's numbers.
        started: Clock tick at which the process started; empty if unknown.
    """

    token: str
    host: str
    pid: int
    since: str
    root: str
    machine: str
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    def encode(self) -> str:
        """Returns the JSON text of the owner."""
        return json.dumps(asdict(self))

    def has_left(self, root: Path) -> bool | None:
        """Whether the process has ended, or writes elsewhere: the lock in `root` is a copy.

        None if only the machine of the process can tell.
        """
        if self.machine != machine():
            return None
        try:
            if not os.path.samefile(self.root, root):
                return True
        except FileNotFoundError:
            return True
        start = started(self.pid)
        return start is None or ("" not in (start, self.started) and start != self.started)


def this_process(root: Path) -> Owner:
    """Returns a new claim of this process to `root`."""
    return Owner(
        token=uuid.uuid4().hex,
        host=platform.node(),
        pid=os.getpid(),
        since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        root=str(root),
        machine=machine(),
        started=started(os.getpid()) or "",
    )


def decode(text: str) -> Owner | None:
    """Returns the owner, or None if the text is damaged."""
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None


def machine() -> str:
    """Returns a name of this boot and process namespace, else the host's name."""
    try:
        return f"{_BOOT.read_text(encoding='ascii').strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def started(pid: int) -> str | None:
    """Returns the clock tick at which a process of this machine started, or None if it has ended.

    Empty if /proc does not show the running process. A zombie has ended: it writes no more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if _is_running(pid) else None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name may hold spaces and parentheses
    return None if fields[_STATE] in "ZX" else fields[_START_TICKS]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it runs for another user
    return True
