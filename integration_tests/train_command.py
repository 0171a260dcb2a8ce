# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train` in a process of its own, as a test needs it: its processes and its files."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forced_devices

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
TINY = (
    *("--pattern", "*.py", "--held-out", "0.2", "--vocab-size", "300"),
    *("--embed", "32", "--depth", "1", "--heads", "2", "--kv-heads", "1", "--mlp", "64"),
    *("--length", "32", "--global-batch", "8", "--guard-sigma", "0"),
)
TIMEOUT_S = 600  # only turns a hang into a failure


def line(steps: int, save_every: int, *options: object) -> tuple[object, ...]:
    """Returns the arguments of a small pretraining.

    Args:
        steps: Its steps.
        save_every: Steps between two saves.
        options: Further arguments.
    """
    count = ("--steps", steps, "--save-every", save_every)
    return ("pretrain", "--text", TEXT, *TINY, *count, *options)


def environment() -> dict[str, str]:
    """Returns the variables of a command whose processes have one CPU device each."""
    return forced_devices.environment(1) | {"JAX_ENABLE_COMPILATION_CACHE": "false"}


class Command:
    """`dovetail train`, and the processes that it has started.

    Args:
        run: Directory of the run.
        line: Arguments after `train`.
        variables: Additions to `environment()`.

    Attributes:
        process: The command.
    """

    def __init__(self, run: Path, *line: object, variables: Mapping[str, str] | None = None):
        self._run, name = run, f"DOVETAIL_TEST_MARK_{uuid.uuid4().hex}"
        self._mark = f"{name}=1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail_stack", "train", *map(str, line), "--out", str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # All that it starts inherits the mark.
            env={**environment(), **(variables or {}), name: "1"},
        )

    def wait_for(self, steps: int) -> dict[str, int]:
        """Waits until so many steps are logged, or the command has ended.

        Returns:
            The process ids of the daemons by their places.
        """
        end = time.monotonic() + TIMEOUT_S
        while len(losses(self._run)) < steps and self.process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        return {
            words[words.index("--place") + 1]: pid
            for pid, words in children(self.process.pid).items()
            if "--place" in words
        }

    def ended(self) -> tuple[int, str, str]:
        """Returns exit code, standard output and error. No process of it is left."""
        output, errors = self.process.communicate(timeout=TIMEOUT_S)
        assert marked(self._mark) == {}
        return self.process.returncode, output, errors


def marked(mark: str) -> dict[int, list[str]]:
    """Returns the command lines of the processes whose environment has `mark`, "NAME=VALUE"."""
    return {pid: words for pid, words in _processes() if mark in _read(pid, "environ").split("\0")}


def children(parent: int) -> dict[int, list[str]]:
    """Returns the command lines of the children of a process by their process ids."""
    return {pid: words for pid, words in _processes() if _parent(pid) == str(parent)}


def rank_on(daemon: int) -> int:
    """Returns the process id of the rank of a daemon: a fork of its server of ranks."""
    (server,) = children(daemon)
    (rank,) = children(server)
    return rank


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    """Returns the complete lines of a file of JSON lines in a run."""
    file = run / name
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(run: Path) -> dict[int, float]:
    """Returns the loss of each step; of a repeated one the last."""
    return {line["step"]: line["loss"] for line in lines(run, "metrics.jsonl") if "loss" in line}


def started(run: Path) -> list[tuple[int, int]]:
    """Returns the generation and the number of devices of each start."""
    starts = [event for event in lines(run, "launches.jsonl") if event["event"] == "start"]
    return [(event["generation"], event["devices"]["count"]) for event in starts]


def _processes() -> list[tuple[int, list[str]]]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [(pid, line.split("\0")) for pid in pids if (line := _read(pid, "cmdline"))]


def _read(pid: int, name: str) -> str:
    """A file of a process; "" if it has ended meanwhile, or belongs to another user."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def _parent(pid: int) -> str:
    return "".join(_read(pid, "stat").rpartition(")")[2].split()[1:2])
