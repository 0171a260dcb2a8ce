# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a verification says of each step of a run, or of safetensors files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail_checkpoint import keep, reading
from dovetail_checkpoint.opening import is_safetensors
from dovetail_checkpoint.progress import Progress, counter
from dovetail_checkpoint.report import Problem
from dovetail_checkpoint.tensor_reader import verify_safetensors


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One step, or one set of files: `verified` if all of it was proven."""

    path: Path
    verified: bool
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        if self.problems:
            return "\n  ".join([f"{self.path}: damaged", *map(str, self.problems)])
        return f"{self.path}: {'verified' if self.verified else 'readable, not verified'}"


def verdicts(path: Path, *, progress: Progress | None) -> Sequence[Verdict]:
    """Reads and checks all that lies at `path`: a run (newest step first), a step, safetensors.

    Raises ValueError if there is nothing of the kind.
    """
    if is_safetensors(path):
        verified, problems = verify_safetensors(path)
        return [Verdict(path=path, verified=verified, problems=tuple(problems))]
    steps = [keep.step_directory(path, step) for step in keep.committed_steps(path)]
    found = []
    sizes = {step: _bytes(step) for step in steps or [path]}
    done = counter(progress, total_bytes=sum(sizes.values()))
    for step in reversed(sizes):
        (report,) = reading.verify(step).steps
        found.append(Verdict(path=step, verified=report.verified, problems=report.problems))
        done(sizes[step])
    return found


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
