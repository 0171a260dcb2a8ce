# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A profile: time and memory of a trace, as tables."""

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

_PROGRAMS = 5  # with tables of memory in a file: those with the most time


class Profile:
    """The tables of a trace. The first call of a method computes its table and keeps it.

    Args:
        recording: The trace, of one or several hosts.

    Attributes:
        hosts: Names of the traced hosts.
        warnings: Gaps of the trace, with their remedies.

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
        """Returns the wall time of each step, by activity. See `StepRow`."""
        return self._kept(steps.steps)

    def roofline(
        self, peaks: Peaks | None = None, *, by: roofline.By = "op"
    ) -> Table[roofline.RooflineRow]:
        """Returns rates and their limits by "op" or "scope". See `RooflineRow`."""
        return self._kept(roofline.roofline, peaks, by=by)

    def annotations(self) -> Table[spans.AnnotationRow]:
        """Returns latencies of annotations of the program. See `AnnotationRow`."""
        return self._kept(spans.annotations)

    def memory(self, module: str) -> memory.Memory:
        """Returns the memory of a program: "jit_train_step" or "train_step". See `Memory`."""
        return self._kept(memory.memory_named, module)

    def modules(self) -> Table[modules.ModuleRow]:
        """Returns the executed programs. See `ModuleRow`."""
        return self._kept(modules.modules)

    def graph(
        self, module: str, around: str | None = None, *, depth: int = 2, fused: bool = False
    ) -> graph.Graph:
        """Returns the graph of a program, or its part around an instruction. See `graph.graph`.

        Args:
            module: Name of the program: "jit_train_step" or "train_step".
            around: Name of an instruction. None: the whole program.
            depth: Edges from `around` to the farthest instruction.
            fused: Whether to show the bodies of fusions.
        """
        program, _ = program_named(self._recording, module)
        return graph.graph(program, around, depth=depth, fused=fused)

    def collectives(
        self, *, link_bytes_per_s: float | None = None
    ) -> Table[collectives.CollectiveRow]:
        """Returns the collectives. See `CollectiveRow`; `link_bytes_per_s` is of one device."""
        return self._kept(collectives.collectives, link_bytes_per_s=link_bytes_per_s)

    def suggestions(self, peaks: Peaks | None = None) -> Table[suggestions.Suggestion]:
        """Returns changes with the time each could save. See `Suggestion`."""
        return self._kept(suggestions.suggestions, peaks)

    def compiles(self) -> Table[compiles.CompileRow]:
        """Returns the compilations, with reasons. See `CompileRow`."""
        return self._kept(compiles.compiles)

    def diff(self, after: "Profile") -> diff.DiffTable:
        """Returns the changes from this profile to that of a later version of the program."""
        return diff.diff(self._recording, after._recording)

    def save(self, path: str | os.PathLike[str], *, peaks: Peaks | None = None) -> Path:
        """Writes "report.html" (a page), "profile.json" (all tables) or "trace.json.gz".

        The page needs the extra `report`, and no other file beside it. The trace is for Perfetto.
        An existing file is replaced once the new one is whole.

        Args:
            path: The file. Its suffix is the format.
            peaks: Limits of one device of the trace, for the roofline and suggestions.

        Returns:
            The path.

        Raises:
            ValueError: The suffix is another one.
            ImportError: A page is asked for, and Plotly is missing.
        """
        from dovetail_profile.page.save import save  # 10 ms of imports

        return save(path, self._recording, lambda: self._all(peaks), peaks=peaks)

    def _all(self, peaks: Peaks | None) -> dict[str, Table[Any]]:
        """Returns the tables of a file, by the names of page/content.py."""
        tables: dict[str, Table[Any]] = {
            "suggestions": self.suggestions(peaks),
            "steps": self.steps(),
            "ops": self.ops(),
            "ops/source": self.ops("source"),
            "ops/scope": self.ops("scope"),
            "ops/category": self.ops("category"),
            "roofline": self.roofline(peaks),
            "roofline/scope": self.roofline(peaks, by="scope"),
            "compiles": self.compiles(),
            "collectives": self.collectives(),
            "annotations": self.annotations(),
            "modules": self.modules(),
        }
        for row in self.modules().top(_PROGRAMS):
            module = self._recording.modules.get((self.hosts.index(row.host), row.id))
            if module and len(module.buffers) and f"memory/{row.program}" not in tables:
                plan = memory.memory(module)
                tables[f"memory/{row.program}"] = plan.at_peak
                tables[f"live/{row.program}"] = plan.over_time
        return tables

    def _kept(
        self,
        table: Callable[Concatenate[Recording, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        key = (table, args, *kwargs.items())
        if key not in self._tables:
            self._tables[key] = table(self._recording, *args, **kwargs)
        return self._tables[key]


def read(path: str | os.PathLike[str]) -> Profile:
    """Reads the trace in a file or folder. See `load`."""
    return Profile(load(path))
