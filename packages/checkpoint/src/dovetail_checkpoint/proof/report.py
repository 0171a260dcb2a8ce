# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results of a restore or a verification: the steps tried and their problems."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Problem.where of a directory that is not the step it is named for.
IDENTITY = "identity"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One damaged leaf or file.

    Attributes:
        where: Leaf (`params/layers.0.kernel`) or file (`params/manifest.ocdbt`).
        reason: The damage, such as two digests that differ.
    """

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The result for one step of a run, or for safetensors.

    Attributes:
        path: The step, or the file or directory.
        step: The number of the step; None for safetensors.
        verified: Whether digests existed and all of them held.
        problems: Damaged leaves and files, or the reason for a refusal.
        foreign: Whether plain Orbax wrote the step.
        numbered: False if an older version wrote the step, without its number and run in the
            manifest: these are then not verified.
    """

    path: Path
    step: int | None = None
    verified: bool
    problems: tuple[Problem, ...] = ()
    foreign: bool = False
    numbered: bool = True

    @property
    def damaged(self) -> bool:
        """Whether data differ from their digests. A step of plain Orbax has none, and a misplaced
        step is intact: these are refused.
        """
        return not self.foreign and any(problem.where != IDENTITY for problem in self.problems)

    @property
    def verdict(self) -> str:
        """The result in words: "verified", "damaged"."""
        if self.problems:
            return "damaged" if self.damaged else "refused"
        if not self.verified:
            return "readable, not verified"
        if not self.numbered:
            return "verified, except for its number: an older version wrote it"
        return "verified"

    def __repr__(self) -> str:
        problems = f"problems: {len(self.problems)}; print it" if self.problems else "no problem"
        return f"StepReport({str(self.path)!r}: {self.verdict}, {problems})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        name = self.path.name if self.step is None else f"step {self.step}"
        problems = ": " + "; ".join(map(str, self.problems)) if self.problems else ""
        return f"{name} is {self.verdict}{problems}"


@dataclass(frozen=True, kw_only=True)
class IntegrityReport:
    """The steps tried, newest first; or one set of safetensors files.

    Attributes:
        steps: The result for each step.
        problems: Problems of the run itself: its file `dovetail-run.json`.
        files: Number of files of the steps that `verify` read; a restore does not count them.
        bytes: Sum of their sizes.
    """

    steps: tuple[StepReport, ...] = ()
    problems: tuple[Problem, ...] = ()
    files: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no problem. Data without digests was only read, see `verified`."""
        return not self.problems and not any(step.problems for step in self.steps)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.problems, *self.steps])) or "no step was read"

    def __repr__(self) -> str:
        verdicts = Counter(step.verdict for step in self.steps)
        steps = "".join(f", {n} {verdict}" for verdict, n in verdicts.items())
        problems = f", problems of the run: {len(self.problems)}" if self.problems else ""
        return f"IntegrityReport({len(self.steps)} steps{steps}{problems}; print it)"


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
