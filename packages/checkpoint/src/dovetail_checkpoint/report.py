# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results of a restore or a verification: the steps tried and their problems."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One damaged leaf (`params/layers.0.kernel`) or file (`params/manifest.ocdbt`)."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The result for one step of a run, or for safetensors.

    Attributes:
        path: The step, or the file or directory.
        verified: Whether digests existed and all of them held.
        problems: Damaged leaves and files.
    """

    path: Path
    verified: bool
    problems: tuple[Problem, ...] = ()

    @property
    def step(self) -> int | None:
        """The number of the step; None for safetensors."""
        return int(self.path.name) if self.path.name.isdecimal() else None

    def __str__(self) -> str:
        name = self.path.name if self.step is None else f"step {self.step}"
        if self.problems:
            return f"{name} is damaged: " + "; ".join(map(str, self.problems))
        return f"{name} is " + ("verified" if self.verified else "readable, not verified")


@dataclass(frozen=True, kw_only=True)
class IntegrityReport:
    """The steps tried, newest first; or one set of safetensors files."""

    steps: tuple[StepReport, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or "no step was read"


class DamageError(RuntimeError):
    """Stored data differs from its digests or checksums; `problems` names leaves and files."""

    exit_code = 3  # of the command

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        listed = "\n  ".join(map(str, problems))
        super().__init__(
            f"what is read must be what was written, got damage in {path}:\n  {listed}\n"
            "read another step, or restore the named files from a copy"
        )
