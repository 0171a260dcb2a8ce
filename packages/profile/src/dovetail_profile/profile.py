# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A profile: where time and memory went, asked of a trace."""

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table
from dovetail_profile.tables import (
    collectives,
    compiles,
    diff,
    graph,
    memory,
    modules,
    ops,
    roofline,
    spans,
    steps,
    suggestions,
)
from dovetail_profile.tables.named import program_named
from dovetail_profile.trace.files import load
from dovetail_profile.trace.recording import Recording

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Profile:
    """The answers to a trace. Each is computed when it is first asked for, and kept.

    Args:
        recording: The trace, of one or several hosts.

    Attributes:
        hosts: Names of the hosts that were traced.
        warnings: What the trace lacks, and what to do about it.

    Example:

        >>> print(read("run/trace").ops(by="scope").top(5))  # doctest: +SKIP
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.hosts = recording.hosts
        self._tables: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        return f"Profile(hosts={self.hosts}, runs={len(self._recording.operations):,})"

    @property
    def warnings(self) -> tuple[str, ...]:
        """See the class."""
        return self._recording.notes

    def ops(self, by: ops.By = "op") -> Table[ops.OpRow]:
        """Returns the time of devices by "op", "source", "scope" or "category". See `OpRow`."""
        return self._kept(ops.ops, by)

    def steps(self) -> Table[steps.StepRow]:
        """Returns the wall time of each step, divided. See `StepRow`."""
        return self._kept(steps.steps)

    def roofline(
        self, peaks: Peaks | None = None, *, by: roofline.By = "op"
    ) -> Table[roofline.RooflineRow]:
        """Returns rates beside the limits of a device, by "op" or "scope". See `RooflineRow`."""
        return self._kept(roofline.roofline, peaks, by=by)

    def annotations(self) -> Table[spans.AnnotationRow]:
        """Returns latencies of the annotations of the program. See `AnnotationRow`."""
        return self._kept(spans.annotations)

    def memory(self, module: str) -> memory.Memory:
        """Returns the memory of a program: "jit_train_step" or "train_step". See `Memory`."""
        return self._kept(memory.memory_named, module)

    def modules(self) -> Table[modules.ModuleRow]:
        """Returns the programs that ran. See `ModuleRow`."""
        return self._kept(modules.modules)

    def graph(
        self, module: str, around: str | None = None, *, depth: int = 2, fused: bool = False
    ) -> graph.Graph:
        """Returns the graph of a program, or its part around an instruction. See `graph.graph`.

        Args:
            module: Name of the program: "jit_train_step" or "train_step".
            around: Name of an instruction. None: the whole program.
            depth: Steps from that instruction.
            fused: Show what is inside of fusions too.
        """
        program, _ = program_named(self._recording, module)
        return graph.graph(program, around, depth=depth, fused=fused)

    def collectives(
        self, *, link_bytes_per_s: float | None = None
    ) -> Table[collectives.CollectiveRow]:
        """Returns the collectives, as a fraction of a link if one is given. See `CollectiveRow`."""
        return self._kept(collectives.collectives, link_bytes_per_s=link_bytes_per_s)

    def suggestions(self, peaks: Peaks | None = None) -> Table[suggestions.Suggestion]:
        """Returns what to change, and the time that it could save. See `Suggestion`."""
        return self._kept(suggestions.suggestions, peaks)

    def compiles(self) -> Table[compiles.CompileRow]:
        """Returns what was traced, lowered and compiled, and why again. See `CompileRow`."""
        return self._kept(compiles.compiles)

    def diff(self, after: "Profile") -> diff.DiffTable:
        """Returns the changes from this profile to one of a later version of the program."""
        return diff.diff(self._recording, after._recording)

    def save(self, path: str | os.PathLike[str], *, peaks: Peaks | None = None) -> Path:
        """Writes "report.html" (a page), "profile.json" (all tables) or "trace.json.gz".

        The page needs the extra `report` and no other file. The trace is for Perfetto, which shows
        operations and annotations on a line of time. An existing file is replaced once the new one
        is whole.

        Args:
            path: The file. Its suffix decides.
            peaks: Limits of one device of the trace, for the roofline and suggestions.

        Returns:
            The path.

        Raises:
            ValueError: The suffix is another one.
            ImportError: A page is asked for, and Plotly is missing.
        """
        from dovetail_profile.page.save import save  # 10 ms that most programs never need

        return save(path, self._recording, peaks=peaks)

    def _kept(
        self,
        table: Callable[Concatenate[Recording, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Returns a table, computed at the first call with these arguments."""
        key = (table, args, *kwargs.items())
        if key not in self._tables:
            self._tables[key] = table(self._recording, *args, **kwargs)
        return self._tables[key]


def read(path: str | os.PathLike[str]) -> Profile:
    """Reads the trace in a file or folder. See `load`."""
    return Profile(load(path))
