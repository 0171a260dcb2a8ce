# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts of a Slurm allocation, each reached by one job step.

The script runs on the first node of the allocation, as `sbatch` starts it, and calls `srun` once
for each host. Steps overlap, so that a daemon can be placed again while the rest of its node's
last step is being cleaned up. Slurm announces preemption and the end of the time limit by SIGTERM
at the tasks of the steps, which are the daemons; they report it as a notice.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

# Seconds that srun has to end its step, before it is killed itself.
_KILL_S = 5.0


def expand(nodelist: str) -> list[str]:
    """Names of the nodes in one of Slurm's host list expressions.

    Args:
        nodelist: Names divided by commas. Brackets hold numbers and ranges, whose leading zeros are
            kept: `"a[1-3,07],b"`. A name may have several brackets.

    Returns:
        The names in the order of the expression.

    Raises:
        ValueError: The expression has a bracket without its partner, or a range that does not rise.

    Example:

        >>> expand("a[9-11],b")
        ['a9', 'a10', 'a11', 'b']
    """
    names = []
    for item in re.findall(r"(?:\[[^\]]*\]|[^,])+", nodelist):
        pieces = re.split(r"\[([^\]]*)\]", item)
        if any(bracket in piece for piece in pieces for bracket in "[]") or not item.strip():
            raise _unreadable(nodelist, item)
        # Text and brackets alternate. The last bracket counts fastest, as in Slurm.
        expanded = [pieces[0].strip()]
        for i in range(1, len(pieces), 2):
            numbers = [
                number for entry in pieces[i].split(",") for number in _numbers(entry, nodelist)
            ]
            expanded = [head + number + pieces[i + 1] for head in expanded for number in numbers]
        names += expanded
    return names


def _numbers(entry: str, nodelist: str) -> list[str]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", entry.strip())
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise _unreadable(nodelist, entry)
    first, last = match[1], match[2] or match[1]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _unreadable(nodelist: str, item: str) -> ValueError:
    return ValueError(
        f"a host list has names with brackets of rising ranges, got {item!r} in {nodelist!r}; "
        f"write 'a[1-3,07],b'"
    )


class Slurm:
    """The nodes of the Slurm allocation in which this program runs.

    Attributes:
        count: Number of nodes.
        listen: Address of this node.
        nodes: Names of the nodes.

    Raises:
        RuntimeError: This program does not run in an allocation, or there is no `srun`.
        ValueError: SLURM_JOB_NODELIST cannot be read.
    """

    def __init__(self) -> None:
        nodelist = os.environ.get("SLURM_JOB_NODELIST", "")
        if not nodelist:
            raise RuntimeError(
                "Slurm() must run inside a Slurm allocation, got no SLURM_JOB_NODELIST; start the "
                "program by `sbatch --nodes=2 SCRIPT`, or write Cluster.local(hosts=2)"
            )
        if shutil.which("srun") is None:
            raise RuntimeError(
                "Slurm() must find the program srun, got none on PATH; add Slurm's bin directory "
                "to PATH, or run outside the container that hides it"
            )
        self.nodes = tuple(expand(nodelist))
        self.count = len(self.nodes)
        self.listen = _address(os.environ.get("SLURMD_NODENAME") or socket.gethostname())

    def place(self, line: Sequence[str], environment: Mapping[str, str], *, place: int) -> Step:
        """Starts a daemon as a job step on node number `place` and returns at once.

        Args:
            line: The command after the Python interpreter.
            environment: Variables to add. `srun` passes its own on, so the key is in no argument.
            place: Index of the node.

        Returns:
            The step.
        """
        node = self.nodes[place]
        command = [
            "srun",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={node}",
            "--overlap",
            "--kill-on-bad-exit=0",
            # One SIGINT ends the step. By default srun asks for two within a second.
            "--quit-on-interrupt",
            "--export=ALL",
            sys.executable,
            "-P",  # modules of the current directory do not shadow installed ones
            *line,
        ]
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            # Ctrl-C at the terminal is for the script alone, which then ends the job in order.
            start_new_session=True,
        )
        return Step(node, process)

    def close(self) -> None:
        """Does nothing: the allocation ends with the script."""


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RuntimeError(
            f"the name of this node must have an address, got {name!r} ({error}); add it to "
            f"/etc/hosts or to the name server"
        ) from error


class Step:
    """A daemon that runs as a job step. See `Placed`."""

    def __init__(self, node: str, process: subprocess.Popen[bytes]):
        self.name, self._process = node, process

    def poll(self) -> int | None:
        """Exit code of `srun`, the step's own; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Ends the step, and `srun` if it does not answer."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
